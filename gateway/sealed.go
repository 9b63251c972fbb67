package gateway

import (
	"ahprelay/ahp"
	"ahprelay/gateway/wire"
)

// On a sealed connection, binary messages are encrypted for the host-agent, and the relay
// cannot read them. Text messages are for the relay: see docs/sealed.md.

// fromSealed passes an encrypted message to the host-agent. During a cut from the cluster's
// majority, it closes the connection instead, because the message may request a change.
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

// forRelay handles a text message on a sealed connection: a token refresh. Any other
// message is an error.
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
