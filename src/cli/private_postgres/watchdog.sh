# Runs a Postgres server that ends with whoever started it, however that one ends.
#
# Standard input is a pipe that the starter holds open and never writes to; the kernel closes it even when
# the starter is killed with -9. Then the server is told to stop, again and again until it does (a signal
# sent before it has its handlers would be lost).
#
# usage: sh -c "$(cat watchdog.sh)" watchdog SIGNAL SOCKET_FOLDER REMOVE POSTGRES ARGUMENT...
#   SIGNAL         INT: finish properly; QUIT: at once
#   SOCKET_FOLDER  removed at the end when empty
#   REMOVE         a folder to remove at the end with all that is in it, or nothing
signal=$1 socket=$2 remove=$3
shift 3

exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
{
  read -r _ <&3
  while kill -s "$signal" "$server"; do sleep 1; done
} 2>/dev/null &
watcher=$!
exec 3<&-

trap 'kill -s "$signal" "$server"' HUP INT TERM
while kill -s 0 "$server" 2>/dev/null; do
  wait "$server"
  status=$?
done
kill -s KILL "$watcher" 2>/dev/null
rmdir "$socket" 2>/dev/null
if [ -n "$remove" ]; then
  cd /
  rm -rf -- "$remove"
fi
exit "$status"
