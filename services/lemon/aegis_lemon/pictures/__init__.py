"""Pictures of histories, ledgers and plans: what each shows (`shows`), as pages and PNG (`chart`), and as text for a terminal (`text`).

A picture is a `figure.Figure`, whoever draws it: pure values in, values out. `chart` needs vl-convert, `text` needs plotext.
"""
