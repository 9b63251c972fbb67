package gateway

import (
	"errors"
	"fmt"
	"io"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
)

// skipStep is the number of skipped bytes that are charged to the rate limits at a time.
const skipStep = 1 << 20

// skip reads the rest of a message that exceeds the limit, and keeps only its envelope.
// If the message is a request, the client gets an error response. If it is a response,
// the host gets an error response instead. Otherwise the connection is closed.
func (c *client) skip(r io.Reader, begun []byte, limit int) error {
	tooBig := fmt.Errorf("%w: more than %d bytes", wire.ErrTooBig, limit)
	var skim ahp.Skimmer
	_, _ = skim.Write(begun)
	c.load.doneReading()
	buf := make([]byte, wire.FirstBuffer)
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
	c.log().Info("client message too long", "kind", env.Kind, "bytes", skim.Size(), "limit", limit)
	answer := ahp.AppendTooLong(nil, &env, skim.Size(), limit)
	if env.Kind == ahp.Request {
		c.answer(answer)
		return nil
	}
	return c.fromClient(answer)
}
