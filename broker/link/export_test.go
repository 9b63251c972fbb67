package link

// AppendSum appends a packet's checksum.
var AppendSum = appendSum
