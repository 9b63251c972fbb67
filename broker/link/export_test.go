package link

// AppendSum appends a packet's checksum.
var AppendSum = appendSum

// InboxBytes is inboxBytes.
const InboxBytes = inboxBytes
