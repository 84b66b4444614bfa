# Ends process groups after the process that started them is gone.
#
# Standard input is a pipe from that process; the kernel closes it even after `kill -9`. Its lines are `+ 123` when the
# group 123 was started, and `- 123` when it was ended.
trap '' HUP INT TERM
groups=
while read -r sign group; do
  case $sign in
    +) groups="$groups $group" ;;
    -)
      left=
      for other in $groups; do
        [ "$other" = "$group" ] || left="$left $other"
      done
      groups=$left
      ;;
  esac
done
[ -n "$groups" ] || exit 0
# Most children end by themselves when their input is closed.
sleep 1
for group in $groups; do kill -s TERM -- "-$group"; done 2>/dev/null
sleep 1
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
exit 0
