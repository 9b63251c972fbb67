package resume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// sendTime is how long sending one packet may take. Otherwise the carrier is closed.
const sendTime = 20 * time.Second

// A webSocket is a Carrier which sends packets as binary messages.
type webSocket struct {
	ws   *websocket.Conn
	once sync.Once
	stop func() bool
}

// NewWebSocket returns a carrier over a WebSocket. It is closed when life ends, if not
// before.
func NewWebSocket(life context.Context, ws *websocket.Conn) Carrier {
	ws.SetReadLimit(maxPacket + 1)
	c := &webSocket{ws: ws}
	c.stop = context.AfterFunc(life, func() { _ = ws.CloseNow() })
	return c
}

func (c *webSocket) Send(packet []byte) error {
	timer := time.AfterFunc(sendTime, func() { _ = c.ws.CloseNow() })
	defer timer.Stop()
	return c.ws.Write(context.Background(), websocket.MessageBinary, packet)
}

// Recv implements [Carrier]. An invalid message ends the stream.
func (c *webSocket) Recv() ([]byte, error) {
	kind, packet, err := c.ws.Read(context.Background())
	switch {
	case errors.Is(err, websocket.ErrMessageTooBig):
		return nil, fmt.Errorf("%w: packet of more than %d bytes", ErrBroken, maxPacket)
	case err == nil && kind != websocket.MessageBinary:
		return nil, fmt.Errorf("%w: text message", ErrBroken)
	}
	return packet, err
}

func (c *webSocket) Close() {
	c.once.Do(func() {
		c.stop()
		_ = c.ws.CloseNow() // a close frame would have to wait for the peer
	})
}
