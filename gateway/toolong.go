package gateway

import (
	"errors"
	"fmt"
	"io"

	"ahprelay/ahp"
)

// skipStep is after how many bytes a message that is too long waits as one that
// passes would, for the limits of its client.
const skipStep = 1 << 20

// skip reads the rest of a message that is too long, and keeps nothing of it but
// what it is. A request is answered with an error. In place of a response, one is
// sent to the host that says so. Nobody waits for anything else: that ends the
// connection.
func (c *client) skip(r io.Reader, begun []byte, limit int) error {
	tooBig := fmt.Errorf("%w: more than %d bytes", errTooBig, limit)
	var skim ahp.Skimmer
	_, _ = skim.Write(begun)
	c.load.doneReading()
	buf := make([]byte, firstBuffer)
	for paid, err := 0, error(nil); err == nil; {
		for ; paid+skipStep <= skim.Size(); paid += skipStep {
			if err := c.await(&ahp.Envelope{}, skipStep); err != nil {
				return err
			}
		}
		if skim.Over() || c.load.cut.Load() {
			return tooBig
		}
		var n int
		n, err = r.Read(buf)
		_, _ = skim.Write(buf[:n])
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	env, err := skim.Envelope()
	if err != nil || env.Kind == ahp.Notification {
		return tooBig
	}
	c.log().Info("message of the client is too long", "kind", env.Kind, "bytes", skim.Size(), "limit", limit)
	answer := ahp.AppendTooLong(nil, &env, skim.Size(), limit)
	if env.Kind == ahp.Request {
		c.answer(answer)
		return nil
	}
	return c.fromClient(answer)
}
