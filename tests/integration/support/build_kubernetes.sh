#!/usr/bin/env bash
# kube-apiserver, kube-scheduler and kube-controller-manager from Debian's own source package, once per machine, into a cache outside of the tree.
#   build_kubernetes.sh [FOLDER]          default: ~/.cache/aegis-k8s; the programs lie in FOLDER/bin. Root, Debian 12, 6 to 15 minutes on two cores.
set -euo pipefail
LAB=${1:-${AEGIS_K8S_CACHE:-$HOME/.cache/aegis-k8s}}
BIN=$LAB/bin
PROGRAMS="kube-apiserver kube-scheduler kube-controller-manager"
ready=yes
for c in $PROGRAMS; do [ -x "$BIN/$c" ] || ready=no; done
command -v etcd >/dev/null || ready=no
[ $ready = yes ] && { echo "$BIN"; exit 0; }

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y --no-install-recommends golang-1.19-go rsync jq make etcd-server golang-github-modern-go-reflect2-dev >/dev/null
mkdir -p "$LAB/src" "$BIN"
cd "$LAB/src"
if [ ! -d kubernetes-1.20.2 ]; then # a view of our own with deb-src: the machine's lists stay as they are
  uri=$(awk '/^URIs/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)
  mkdir -p "$LAB/apt/lists/partial"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri bookworm main" >"$LAB/apt/src.list"
  view=(-o Dir::Etc::sourcelist="$LAB/apt/src.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$LAB/apt/lists")
  view+=(-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
  apt-get "${view[@]}" update -qq
  apt-get "${view[@]}" source -qq --download-only kubernetes 2>/dev/null
  tar xf kubernetes_*.orig.tar.gz
fi
cd kubernetes-1.20.2
# The vendored reflect2 1.0.1 panics on maps when Go >= 1.18 compiles it: Debian's 1.0.2 does not.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
rm -f vendor/github.com/modern-go/reflect2/*_test.go
export PATH=/usr/lib/go-1.19/bin:$PATH CGO_ENABLED=0 GOPROXY=off GOCACHE=${GOCACHE:-$LAB/gocache}
GO111MODULE=on GOFLAGS=-mod=vendor make generated_files >"$LAB/gen.log" 2>&1 # writes the OpenAPI file that the tree lacks
mkdir -p "$LAB/gopath/src/k8s.io"
ln -sfn "$PWD" "$LAB/gopath/src/k8s.io/kubernetes"
export GO111MODULE=off GOPATH=$LAB/gopath # module mode refuses its old go.mod
cd "$GOPATH/src/k8s.io/kubernetes"
v=k8s.io/kubernetes/vendor/k8s.io
x="-s -w"
for m in component-base/version client-go/pkg/version; do
  x+=" -X $v/$m.gitVersion=v1.20.2 -X $v/$m.gitMajor=1 -X $v/$m.gitMinor=20"
done
for c in $PROGRAMS; do
  go build -trimpath -ldflags "$x" -o "$BIN/$c" "k8s.io/kubernetes/cmd/$c"
done
echo "$BIN"
