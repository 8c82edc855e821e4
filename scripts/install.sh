# shellcheck shell=bash disable=SC2154
# How the environment's packages are installed; sourced by scripts/setup_env.sh, which sets $root, $venv, $log, $platform
# and $mode.
#
# Everything is pinned, and one thing has to be found: a CPU build of torch. PyTorch publishes it in an index of its own,
# and the Python Package Index has a CUDA build only. So torch alone is asked for first, which costs a second, and then
# everything is installed once, in the first of these ways that applies:
#
#   way          installer   is told                                         applies if
#   there        uv or pip   what pip is configured with                     the environment has either build already
#   configured   uv          pip's indexes, find-links and constraints       that finds a CPU build
#   pytorch      uv          the same; for torch alone --torch-backend cpu   PyTorch's own index, which uv knows by itself,
#                                                                            has one and answers within 20 s
#   pip          pip         nothing more                                    that finds a CPU build
#   pypi         uv or pip   requirements/cpu-cuda-torch.lock.txt, too       always; it is larger, and works
#
# A CPU build is known by its version, which ends in +cpu. uv comes from the configured index, in the version of
# requirements/uv.lock.txt, and learns pip's configuration from scripts/uv_like_pip.py. pip does the work where uv cannot be
# had or gets no answer, and where RAG_R1_INSTALLER=pip asks for it. A GPU environment needs no such search: its torch is
# on the Python Package Index.

# Downloads, and size on disk, of the CPU environment: docs/guides/installing.md has the measurement.
_rag_r1_size="0.9 GB to download, 3.5 GB on disk"
_rag_r1_size_pypi="3.4 GB to download and 7.5 GB on disk, instead of 0.9 and 3.5"
_rag_r1_patience=20 # seconds

# Puts the path of uv into $uv; empty: pip does its work.
_rag_r1_find_uv() {
  local wanted have
  case "${RAG_R1_INSTALLER:-uv}" in
    uv) ;;
    pip) uv="" && return 0 ;;
    *) _rag_r1_fail "RAG_R1_INSTALLER is '$RAG_R1_INSTALLER'" "set it to uv or pip, or unset it"; return 1 ;;
  esac
  uv="$venv/bin/uv"
  wanted=$(sed -n 's/^uv==//p' "$root/requirements/uv.lock.txt")
  have=$("$uv" --version 2>/dev/null | awk '{ print $2 }') || have=""
  [ "$have" != "$wanted" ] || return 0
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps -r "$root/requirements/uv.lock.txt" \
    >> "$log" 2>&1 || uv=$(command -v uv) || uv=""
}

# _rag_r1_uv COMMAND [arguments]: uv pip COMMAND for this environment, with pip's configuration; $limit: at most so many seconds.
_rag_r1_uv() {
  ${limit:+timeout "$limit"} "$venv/bin/python" "$root/scripts/uv_like_pip.py" "$uv" pip "$1" --python "$venv/bin/python" "${@:2}"
}

# _rag_r1_torch VERSION [arguments]: prints the build of torch that uv finds, e.g. 2.13.0+cpu; fails if it finds none.
_rag_r1_torch() {
  local found
  found=$(printf 'torch==%s\n' "$1" | _rag_r1_uv compile - --no-deps --no-header --no-annotate "${@:2}" 2>> "$log") || return 1
  found=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' <<< "$found")
  [ -n "$found" ] && echo "$found"
}

# The same, asked of pip: the CPU build of torch VERSION.
_rag_r1_torch_of_pip() {
  "$venv/bin/python" -m pip index versions --disable-pip-version-check torch 2>> "$log" |
    awk -v wanted="$1+cpu" -F': ' '/^Available versions/ {
      n = split($2, versions, ", ")
      for (i = 1; i <= n; i++) if (index(versions[i], wanted) == 1) { print versions[i]; found = 1; exit }
    } END { exit !found }'
}

# Decides $way, $installer and $torch, the version to install.
_rag_r1_choose_way() {
  local version there answer=""
  _rag_r1_find_uv || return 1
  version=$(sed -n 's/^torch==//p' "$root/requirements/$platform.lock.txt")
  installer=pip way=pypi torch="torch===$version" # three: no other local version, e.g. +cu130
  if [ -n "$uv" ] && answer=$(_rag_r1_torch "$version"); then installer=uv; fi
  if [ "$platform" = gpu ]; then
    way=configured torch="torch==$version"
    return 0
  fi
  there=$("$venv/bin/python" -c 'from importlib import metadata; print(metadata.version("torch"))' 2>/dev/null) || there=""
  if [[ "$there" == "$version" || "$there" == "$version+cpu"* ]]; then
    way=there answer=$there
  elif [[ "$answer" == "$version+cpu"* ]]; then
    way=configured
  elif [ -n "$uv" ] && answer=$(UV_HTTP_RETRIES=1 limit=$_rag_r1_patience _rag_r1_torch "$version" --torch-backend cpu) &&
    [[ "$answer" == "$version+cpu"* ]]; then
    way=pytorch installer=uv
  elif answer=$(_rag_r1_torch_of_pip "$version"); then
    way=pip installer=pip
  else
    return 0
  fi
  torch="torch==$answer"
}

# Runs the installer with the given arguments, showing one line of progress; its own output goes to $log.
_rag_r1_add() {
  local state from
  from=$(($(wc -l < "$log") + 1))
  if [ "$installer" = uv ]; then
    _rag_r1_uv install "$@" 2>&1 | _rag_r1_progress
  else
    _rag_r1_pip_install "$@" 2>&1 | _rag_r1_progress
  fi
  state=${PIPESTATUS[0]}
  [ "$state" -eq 0 ] || _rag_r1_explain "$from"
  return "$state"
}

# The same with pip, whatever the installer: for what is compiled.
_rag_r1_pip() { local installer=pip && _rag_r1_add "$@"; }
_rag_r1_pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@"
}

# In bash, since some versions of awk wait for a whole block of lines.
_rag_r1_progress() {
  local line looked=0 large=0 here=0 shown=""
  while IFS= read -r line; do
    printf '%s\n' "$line" >> "$log"
    case $line in
      "Collecting "* | "Requirement already"*) looked=$((looked + 1)) && shown="$looked packages looked up" ;;
      "Downloading "*"iB)") large=$((large + 1)) && shown="$here of $large large packages downloaded" ;;
      " Downloaded "*) here=$((here + 1)) && shown="$here of $large large packages downloaded" ;;
      "Installing collected"* | "Prepared "*) shown="installing" ;;
      *) continue ;;
    esac
    printf '\r  %-50s' "$shown" >&2
  done
  [ -z "$shown" ] || printf '\r  %-50s\r' "" >&2
}

# Says what stopped the installer, from the log's lines from number $1 on.
_rag_r1_explain() {
  local python text name
  text=$(tail -n "+$1" "$log")
  python=$("$venv/bin/python" -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' 2>/dev/null) || python=Python
  grep -E '^ *(ERROR|error|cause|hint):' <<< "$text" | tail -8 >&2
  if grep -qE 'No space left|os error 28|Errno 28|quota exceeded' <<< "$text"; then
    _rag_r1_fail "no space is left on the disk (the environment: ${_rag_r1_size_now:-15 GB on a GPU machine, else 8})" \
      "free some, or name another disk: VENV for the environment, UV_CACHE_DIR or PIP_CACHE_DIR for downloads, TMPDIR"
  elif grep -qE 'Failed to fetch|error sending request|connection broken by|Temporary failure in name|timed out' <<< "$text"; then
    _rag_r1_fail "the package index cannot be reached" \
      "check the network and, behind a proxy, HTTPS_PROXY; a mirror is named for pip: pip config set global.index-url <URL>"
  elif name=$(sed -nE 's/.*(No matching distribution found for|Because) ([A-Za-z0-9._+-]+==[^ ]+)( has no (usable )?wheels.*|)$/\2/p' <<< "$text" | head -1) &&
    [ -n "$name" ]; then
    _rag_r1_fail "the configured indexes have no $name for $python on this machine" \
      "add the index that has it to pip's configuration (pip config list shows it), or use Python 3.11: VENV=<new folder> PYTHON=python3.11"
  else
    _rag_r1_fail "$installer failed; its whole output is in $log" "look for the first error there, then run this again"
  fi
}

# Installs the lists of $platform and $mode, and this project in editable form.
_rag_r1_install() {
  local way installer torch uv lists compile=() _rag_r1_size_now
  : > "$log"
  "$venv/bin/python" -c 'import pip' 2>/dev/null || "$venv/bin/python" -m ensurepip >> "$log" 2>&1 ||
    { _rag_r1_fail "$venv has no pip, and ensurepip cannot add it" "on Debian or Ubuntu: apt install python3-venv"; return 1; }
  _rag_r1_choose_way || return 1
  lists=(-r "$root/requirements/$platform.lock.txt")
  if [ "$platform" = gpu ]; then
    _rag_r1_say "installing the GPU environment into $venv with $installer (first use: 15 minutes and more, about 15 GB)"
  elif [ "$way" = there ]; then
    _rag_r1_say "bringing the CPU environment in $venv up to date with $installer ($torch)"
  elif [ "$way" = pypi ]; then
    _rag_r1_size_now=$_rag_r1_size_pypi
    _rag_r1_say "no CPU build of torch was found, so the CUDA build of the Python Package Index is taken: $_rag_r1_size_pypi"
    _rag_r1_say "installing the CPU environment into $venv with $installer ($torch)"
  else
    _rag_r1_size_now=$_rag_r1_size
    _rag_r1_say "installing the CPU environment into $venv with $installer ($torch; $_rag_r1_size)"
  fi
  if [ "$platform" = cpu ] && [[ "$torch" != *+cpu* ]]; then lists+=(-r "$root/requirements/cpu-cuda-torch.lock.txt"); fi
  [ "$mode" != --dev ] || lists+=(-r "$root/requirements/dev.lock.txt")
  [ "$installer" != uv ] || compile=(--compile-bytecode) # as pip does
  if [ "$way" = pytorch ]; then _rag_r1_add --no-deps --torch-backend cpu "$torch" || return 1; fi
  _rag_r1_add --no-deps "${compile[@]}" "${lists[@]}" "$torch" || return 1
  if [ "$mode" = --dev ]; then
    _rag_r1_add --no-deps --upgrade --target "$venv/apart" -r "$root/requirements/apart.lock.txt" ||
      _rag_r1_say "without requirements/apart.lock.txt: the tests of published chat templates will be left out"
  fi
  _rag_r1_add --no-deps --no-build-isolation -e "$root" || return 1
  if [ "$platform" = gpu ]; then _rag_r1_flash_attn "$root" || return 1; fi
}
