#!/usr/bin/env bash
# What the shared library shows and wants.
#   symbols.sh exported LIBRARY HEADER   exports the functions that the header declares, and nothing else
#   symbols.sh only LIBRARY NAME         exports NAME and nothing else
#   symbols.sh imported LIBRARY          wants nothing that ends the process or writes to stdout
set -euo pipefail
export LC_ALL=C # nm prints words
case $1 in
  exported)
    exported=$(nm -D --defined-only "$2" | awk '{print $NF}' | sort)
    declared=$(grep -oE '^ECHO_API .*' "$3" | grep -oE 'echo_[a-z0-9_]+\(' | tr -d '(' | sort)
    [ -n "$declared" ]
    if ! diff <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"); then
      echo "above: < declared in the header but not exported, > exported but not declared" >&2
      exit 1
    fi
    printf '%s functions declared and exported\n' "$(wc -l <<<"$declared")"
    ;;
  only)
    exported=$(nm -D --defined-only "$2" | awk '{print $NF}')
    if [ "$exported" != "$3" ]; then
      printf 'expected: %s\nexported: %s\n' "$3" "$exported" >&2
      exit 1
    fi
    ;;
  imported)
    forbidden='exit|_exit|_Exit|quick_exit|abort|__assert_fail|printf|vprintf|__printf_chk|__vprintf_chk|puts|putchar'
    forbidden+='|stdout|_ZSt4cout'
    if nm -D --undefined-only "$2" | awk '{print $NF}' | sed 's/@.*//' | grep -xE "$forbidden"; then
      echo "above: symbols that the library must not use; it returns errors and leaves stdout alone" >&2
      exit 1
    fi
    ;;
  *)
    exit 2
    ;;
esac
