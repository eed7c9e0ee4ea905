SELECT ?, '?', "?", $1 /* ? */ -- ?
FROM messages WHERE ts - ? <= ? AND symbol = ?
