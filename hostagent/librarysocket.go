package hostagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/coder/websocket"
)

// A librarySocket uses the WebSocket library's frames, as a baseline for benchmarks of
// webSocket. Production host-agents never use it: it skips no long messages and waits
// for no queue space.
type librarySocket struct{ ws *websocket.Conn }

func dialLibrary(ctx context.Context, address string, header http.Header, client *http.Client, limit int) (hostSocket, error) {
	ws, _, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(int64(limit))
	return librarySocket{ws}, nil
}

// Read implements hostSocket.
func (s librarySocket) Read() (message []byte, binary bool, err error) {
	kind, message, err := s.ws.Read(context.Background())
	if errors.Is(err, websocket.ErrMessageTooBig) {
		err = fmt.Errorf("%w: %w", errTooBig, err)
	}
	return message, kind == websocket.MessageBinary, err
}

// Whole implements hostSocket. The library does not show its read buffer.
func (s librarySocket) Whole() bool { return false }

// Write implements hostSocket.
func (s librarySocket) Write(message []byte, binary bool) error {
	kind := websocket.MessageText
	if binary {
		kind = websocket.MessageBinary
	}
	return s.ws.Write(context.Background(), kind, message)
}

// Close implements hostSocket.
func (s librarySocket) Close(reason string) { _ = s.ws.Close(websocket.StatusNormalClosure, reason) }
