# Starts HDFS on this machine, for a script that has set `java` (the output of jars.sh) and `directory`.
#
#   minicluster DATASERVERS [ARGUMENTS OF Minicluster.java]
#
# The function returns when WebHDFS answers. `address` then has the address of WebHDFS, and `server` the process of HDFS.
# HDFS ends when descriptor 9 is closed.
minicluster() {
  mkfifo "$directory/end"
  $java Minicluster "$directory/hdfs" "$@" <"$directory/end" >"$directory/address" 2>"$directory/log" &
  server=$!
  exec 9>"$directory/end"
  until grep -q webhdfs "$directory/address"; do
    kill -0 "$server" || { tail "$directory/log"; exit 1; }
    sleep .5
  done
  address=$(grep webhdfs "$directory/address")
}
