# Ends process groups whose starter is gone, however that one ended.
#
# Standard input is a pipe that the starter holds open; the kernel closes it even when the starter is killed with -9.
# Before that it carries lines: `+ 123` when the group 123 was started, `- 123` when it was ended.
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
# Without input, most have ended by themselves by now.
sleep 1
for group in $groups; do kill -s TERM -- "-$group"; done 2>/dev/null
sleep 1
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
exit 0
