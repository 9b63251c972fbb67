package hostagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/internal/ablation"
	"ahprelay/internal/clock"
	"ahprelay/routing"
)

// A hostReader carries the host's messages to a client.
type hostReader struct {
	c *hostConn

	lastHeard clock.Time    // when the host's last message arrived
	reads     chan struct{} // one token for each active or queued canvas read
	reading   chan struct{} // one token for each active canvas read

	// Owned by the goroutine of run.
	env  ahp.Envelope            // envelope of the current message
	last uint32                  // cache slot of the last known notification
	row  []*routing.Notification // permitted by the gates, but not yet passed on
	due  bool                    // conn.Send must be called for messages queued since its last call
}

// run passes the host's messages to the client, and returns why it ended. While
// the client's queue is full, run does not read from the host, and it holds no
// lock, so the client can still send.
func (r *hostReader) run(ctx context.Context, sock hostSocket) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer r.c.conn.Unreserve()
	for {
		if err := r.c.conn.Wait(r.c.ended); err != nil {
			return err
		}
		message, binary, err := sock.Read()
		if err != nil {
			message, err = r.inPlaceOf(err)
		}
		if errors.Is(err, errAnswered) {
			r.c.conn.Unreserve()
			continue
		}
		if err != nil {
			return err
		}
		r.lastHeard.Set(time.Now())
		if err := r.passOn(ctx, &wg, sock, message, binary); err != nil {
			return err
		}
		r.c.conn.Unreserve()
	}
}

// errAnswered reports a host request answered by the host-agent itself.
var errAnswered = errors.New("answered")

// inPlaceOf handles the error of a message above the limit. For a response, it
// returns an error response to pass on instead. For a request, it answers the
// host, and returns errAnswered. Other read errors are returned unchanged.
func (r *hostReader) inPlaceOf(err error) ([]byte, error) {
	var skip *skippedError
	if !errors.As(err, &skip) {
		return nil, err
	}
	r.c.log.Warn("long host message skipped", "kind", skip.env.Kind, "method", shorten(string(skip.env.Method)), "bytes", skip.size, "limit", skip.limit)
	answer := ahp.AppendTooLong(nil, &skip.env, skip.size, skip.limit)
	if skip.env.Kind == ahp.Response {
		return answer, nil
	}
	r.c.counts.out.Add(1)
	if err := r.c.writer.answerHost(answer); err != nil {
		return nil, err
	}
	return nil, errAnswered
}

// passOn passes on a host message, and all complete messages behind it in the
// read buffer.
func (r *hostReader) passOn(ctx context.Context, wg *sync.WaitGroup, sock hostSocket, message []byte, binary bool) error {
	r.c.order.Lock()
	defer r.c.order.Unlock()
	bytes := 0
	defer func() {
		r.env = ahp.Envelope{} // an idle connection must not keep the message in memory
		r.c.counts.outBytes.Add(int64(bytes))
		if r.due {
			r.due = false
			r.c.conn.Send()
		}
	}()
	for {
		bytes += len(message)
		err := r.fromHost(ctx, wg, message, binary)
		if err != nil || !sock.Whole() || r.c.conn.HeldBack() {
			return errors.Join(err, r.passRow())
		}
		if message, binary, err = sock.Read(); err != nil { // a whole message is below the limit
			return errors.Join(err, r.passRow())
		}
	}
}

// parse parses a host message. For a notification that may be for several
// connections, it also returns the cached copy. The results are valid until the
// next call.
func (r *hostReader) parse(message []byte) (known *cachedFrame, env *ahp.Envelope, err error) {
	frames := &r.c.agent.frames
	if ablation.FrameCache {
		r.env, err = ahp.Peek(message)
		return nil, &r.env, err
	}
	if known, r.last = frames.find(message, r.last); known != nil {
		return known, &known.env, nil
	}
	keep := len(message) <= cachedSize && r.c.agent.clients.several()
	if keep {
		message = bytes.Clone(message)
	}
	if r.env, err = ahp.Peek(message); err != nil {
		return nil, nil, err
	}
	if !keep || r.env.Kind != ahp.Notification {
		return nil, &r.env, nil
	}
	known, r.last = frames.add(message, &r.env, r.last)
	return known, &known.env, nil
}

// fromHost does with a host message what the client's gates decide. It adds a permitted
// notification to the row if several connections may receive it, and passes on other
// permitted messages.
func (r *hostReader) fromHost(ctx context.Context, wg *sync.WaitGroup, message []byte, binary bool) error {
	r.c.counts.out.Add(1)
	known, env, err := r.parse(message)
	if err != nil || binary {
		if d, _ := r.c.gates.FromHost(message, nil); d.Verdict != gate.Pass {
			return nil
		}
		return r.passAlone(message, binary, nil) // the client rejects it
	}
	d, reading := r.c.gates.FromHost(message, env)
	switch d.Verdict {
	case gate.Answer:
		return r.c.writer.answerHost(d.Message)
	case gate.Replace:
		message, known = d.Message, nil
		other, err := ahp.Peek(message)
		if err != nil {
			return fmt.Errorf("replaced message: %w", err)
		}
		env = &other
	}
	if env.Kind == ahp.Response {
		if err := r.passRow(); err != nil {
			return err
		}
		r.noteAnswer(env, reading)
		r.c.traced.Answered(env, len(message))
		return r.response(ctx, wg, message, env, reading)
	}
	if known != nil {
		r.row = append(r.row, known.shared)
		return nil
	}
	var channel []byte
	if env.Kind == ahp.Notification {
		channel = env.Channel
	}
	return r.passAlone(message, false, channel)
}

// passAlone passes on the row, and then this message.
func (r *hostReader) passAlone(message []byte, binary bool, channel []byte) error {
	if err := r.passRow(); err != nil {
		return err
	}
	due, err := r.c.conn.Take(message, binary, channel)
	r.due = r.due || due
	return err
}

// passRow passes on the row's notifications.
func (r *hostReader) passRow() error {
	if len(r.row) == 0 {
		return nil
	}
	_, due, err := r.c.conn.Notify(r.row)
	r.due = r.due || due
	clear(r.row)
	r.row = r.row[:0]
	return err
}

// noteAnswer raises the limit for client messages after the host has accepted
// the client's initialize or reconnect. The monitor learns the host's version from
// the result of initialize.
func (r *hostReader) noteAnswer(env *ahp.Envelope, reading *view.Reading) {
	if reading == nil || !reading.Greets {
		return
	}
	if reading.Call.Method == "initialize" {
		if result, err := ahp.ReadInitializeResult(env.Result); err == nil {
			r.c.agent.monitor.learn(result)
		}
	}
	r.c.conn.Ready()
}
