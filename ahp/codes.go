package ahp

// JSON-RPC 2.0 error codes, section 5.1.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603
)

// Error codes AHP defines.
const (
	CodeSessionNotFound            = -32001
	CodeProviderNotFound           = -32002
	CodeSessionAlreadyExists       = -32003
	CodeTurnInProgress             = -32004
	CodeUnsupportedProtocolVersion = -32005
	CodeContentNotFound            = -32006
	CodeAuthRequired               = -32007
	CodeNotFound                   = -32008
	CodePermissionDenied           = -32009
	CodeAlreadyExists              = -32010
	CodeConflict                   = -32011
	CodeCanvasProviderError        = -32012
)

// The relay's own error codes, outside the ranges in which JSON-RPC and AHP grow.
const (
	CodeHostOffline = 4100
	CodeRateLimited = 4290
)

// A CloseCode is the code in a WebSocket close frame (RFC 6455, section 7.4). Among
// the relay's own codes, 4000 to 4499 mean "reconnect" and 4500 to 4999 mean "do not
// reconnect", so a client needs no table.
type CloseCode uint16

// Close codes the relay sends to clients.
const (
	CloseShuttingDown  CloseCode = 1001 // drain: reconnect at once
	CloseMessageTooBig CloseCode = 1009 // a frame above the limit
	CloseResync        CloseCode = 1012 // the connection cannot continue: reconnect at once
	CloseOverloaded    CloseCode = 1013 // a limit is exceeded, or the client reads too slowly: reconnect with back-off
	CloseHostOffline   CloseCode = 4100 // the host cannot be reached now
	CloseBadMessage    CloseCode = 4500 // not a single JSON-RPC object in a text frame
	CloseTokenEnded    CloseCode = 4501 // token expired or revoked
	CloseForbidden     CloseCode = 4503 // the relay, the host-agent or its owner refuses the client
	CloseUnknownHost   CloseCode = 4504 // never enrolled
)

// Reason returns the text with which the close frame's reason usually begins. A closer may
// append ": " and details.
func (c CloseCode) Reason() string {
	switch c {
	case CloseShuttingDown:
		return "relay shutting down"
	case CloseMessageTooBig:
		return "message too big"
	case CloseResync:
		return "resync"
	case CloseOverloaded:
		return "overloaded"
	case CloseHostOffline:
		return "host offline"
	case CloseBadMessage:
		return "bad message"
	case CloseTokenEnded:
		return "token expired"
	case CloseForbidden:
		return "forbidden"
	case CloseUnknownHost:
		return "unknown host"
	}
	return ""
}
