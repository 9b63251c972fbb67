package loadgen

import (
	"bytes"
	"errors"
	"fmt"

	"ahprelay/internal/sealed"
)

// A Seal has what clients need to connect to a sealed host: see docs/sealed.md. All
// clients use the same device.
type Seal struct {
	Host   string
	Key    []byte // public key of the host
	Device []byte // private keys of the device
}

// sealLimit is the most bytes in a message of a sealed host.
const sealLimit = maxFrame

// A sealing is the client's part of a sealed connection.
type sealing struct {
	session *sealed.Session
	ready   [][]byte // messages that arrived together with the last one
}

// seal performs the handshake on a connection, and asks for shared messages.
// Afterwards, all messages on the connection are sealed. It sends no heartbeats,
// because the window is longer than any benchmark.
func (c *wsConn) seal(s *Seal) error {
	device, err := sealed.ReadDevice(s.Device)
	if err != nil {
		return err
	}
	key := sealed.Key(s.Key)
	handshake, answer, err := sealed.NewInitiator(sealed.InitiatorConfig{
		Host: s.Host, HostKey: &key, Device: device, Limit: sealLimit, Greeting: sealed.Greeting{Name: "load", Window: int(sealed.MaxWindow.Seconds())},
	})
	if err != nil {
		return err
	}
	var session *sealed.Session
	for session == nil {
		if err := c.send(opBinary, answer); err != nil {
			return err
		}
		said, err := c.frames()
		if err != nil {
			return err
		}
		if answer, session, err = handshake.Read(said); err != nil {
			return err
		}
	}
	if err := c.send(opBinary, answer); err != nil {
		return err
	}
	said, err := c.frames()
	if err != nil {
		return err
	}
	content, body, _, err := session.Open(said)
	if err != nil || content != sealed.Welcome {
		return fmt.Errorf("the host answers the handshake with content %d, %q, %v; want a welcome", content, body, err)
	}
	c.sealing = &sealing{session: session}
	return c.sealed(sealed.Ask, []byte(`{"id":0,"do":"share","parts":true}`))
}

// sealed sends content with a body, sealed.
func (c *wsConn) sealed(content sealed.Content, body []byte) error {
	frames, err := c.sealing.session.Seal(content, body)
	for _, frame := range frames {
		if err == nil {
			err = c.send(opBinary, frame)
		}
	}
	return err
}

// open opens a WebSocket message. It calls each with every AHP message that is then
// complete.
func (s *sealing) open(frame []byte, each func(message []byte) error) error {
	content, body, done, err := s.session.Open(frame)
	for ; done && err == nil; content, body, done = s.session.Next() {
		switch content {
		case sealed.Message:
			err = each(body)
		case sealed.Close:
			err = fmt.Errorf("the host closes: %q", body)
		}
	}
	return err
}

// next waits for the next AHP message and returns it.
func (s *sealing) next(read func() ([]byte, error)) ([]byte, error) {
	for len(s.ready) == 0 {
		frame, err := read()
		if err != nil {
			return nil, err
		}
		err = s.open(frame, func(message []byte) error {
			s.ready = append(s.ready, bytes.Clone(message))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	message := s.ready[0]
	s.ready = s.ready[1:]
	return message, nil
}

// errPlain is the error for text on a sealed connection.
var errPlain = errors.New("a sealed host sent an unsealed frame")
