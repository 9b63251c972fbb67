package resume

import (
	"context"
	"errors"
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

// errText reports a text message.
var errText = errors.New("text message on a carrier")

// Recv implements [Carrier].
func (c *webSocket) Recv() ([]byte, error) {
	kind, packet, err := c.ws.Read(context.Background())
	if err == nil && kind != websocket.MessageBinary {
		err = errText
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
