package gateway

import (
	"ahprelay/ahp"
	"ahprelay/gateway/wire"
)

// A sealed connection's binary messages are for the host-agent, and the relay cannot read
// them. Its text messages are for the relay: see docs/sealed.md.

// fromSealed passes a sealed message to the host-agent. While the relay is cut off from the
// majority, it ends the connection: the message may be a request for a change.
func fromSealed(c *client, message []byte) error {
	var unread ahp.Envelope
	if err := c.await(&unread, len(message)); err != nil {
		return err
	}
	if c.cutOff.Load() {
		return errCutOff
	}
	return c.pass(&unread, message)
}

// forRelay handles a text message of a sealed connection.
func forRelay(c *client, message []byte) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return err
	}
	if err := c.await(&env, len(message)); err != nil {
		return err
	}
	if !c.answerRefresh(&env) {
		return wire.ErrText
	}
	return nil
}
