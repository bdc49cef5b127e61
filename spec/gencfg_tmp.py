import sys
texts=open('AegisPhase.cfg').read()
INV=texts[texts.index('INVARIANTS'):texts.index('PROPERTIES')]
PROP=texts[texts.index('PROPERTIES'):].strip()
def cfg(name,workers,retry,unc,feat,live=False,port=1):
    ws=[f'w{i+1}' for i in range(workers)]
    o='SPECIFICATION Spec\nCONSTANTS\n  '+'  '.join(f'{w} = {w}' for w in ws)+'\n  Workers = {'+', '.join(ws)+f'}}\n  MaxRetry = {retry}\n  MaxUncounted = {unc}\n  MaxPort = {port}\n  Features = {{'+', '.join(f'"{f}"' for f in feat.split())+'}\n'
    o+=INV+PROP+(' Ends' if live else '')+'\n'
    open(name+'.cfg','w').write(o)
if __name__=='__main__':
    a=sys.argv
    cfg(a[1],int(a[2]),int(a[3]),int(a[4]),a[5],live=len(a)>6)
