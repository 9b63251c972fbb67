package resume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// sendTime bounds the sending of a packet. A carrier that takes longer is broken.
const sendTime = 20 * time.Second

// A webSocket is a carrier over binary messages.
type webSocket struct {
	ws   *websocket.Conn
	once sync.Once
	stop func() bool
}

// NewWebSocket returns a carrier over a WebSocket, which ends with life at the latest.
func NewWebSocket(life context.Context, ws *websocket.Conn) Carrier {
	ws.SetReadLimit(maxPacket + 1)
	c := &webSocket{ws: ws}
	c.stop = context.AfterFunc(life, func() { _ = ws.CloseNow() })
	return c
}

// Send implements [Carrier].
func (c *webSocket) Send(packet []byte) error {
	timer := time.AfterFunc(sendTime, func() { _ = c.ws.CloseNow() })
	defer timer.Stop()
	return c.ws.Write(context.Background(), websocket.MessageBinary, packet)
}

// Recv implements [Carrier]. A message that no peer sends ends the stream.
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

// Close implements [Carrier].
func (c *webSocket) Close() {
	c.once.Do(func() {
		c.stop()
		_ = c.ws.CloseNow() // a close frame would wait for the peer
	})
}
