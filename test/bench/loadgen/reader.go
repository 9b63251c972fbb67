package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A group is the readers of a channel.
type group struct {
	args    ConnectArgs
	loop    *loop
	counter *counter
	format  *Format
	readers []*reader

	// Guarded by loop.mu.
	timed  bool
	delays []time.Duration
	frames int64
	ended  []string
}

// A reader is a connection that must receive each action of a channel exactly once, in
// order.
type reader struct {
	group *group
	index int
	quiet bool

	// Guarded by loop.mu.
	fd     int      // socket; -1: none
	tls    net.Conn // used in place of fd; nil: no TLS
	rest   []byte   // start of an incomplete frame
	left   int      // NATS: number of missing bytes of a frame
	stream []byte   // start of an incomplete message
	action int64    // number of the last action
	seq    int64    // serverSeq of the last action

	sealing *sealing // nil: messages are not sealed
}

// join connects reader i.
func (g *group) join(ctx context.Context, i int) (*wsConn, error) {
	ws, err := dialWS(ctx, g.args.url(), TokenOf(g.args.Tokens, i), g.args.Seal)
	if err != nil {
		return nil, err
	}
	switch g.args.Kind {
	case AHP:
		err = greet(ws, fmt.Sprintf("%s-%d", g.args.Group, i), g.args.Channel)
	case NATS:
		err = subscribe(ws, g.args.Channel)
	case Plain:
		err = ws.echo()
	}
	if err != nil {
		_ = ws.Close()
		return nil, err
	}
	return ws, nil
}

// greet sends initialize, which subscribes to channel unless that is "".
func greet(ws *wsConn, clientID, channel string) error {
	subscriptions := "[]"
	if channel != "" {
		subscriptions = fmt.Sprintf("[%q]", channel)
	}
	_, err := ask(ws, "1", "initialize", fmt.Sprintf(
		`{"channel":"ahp-root://","clientId":%q,"protocolVersions":["0.9.0"],"capabilities":{},"initialSubscriptions":%s}`, clientID, subscriptions))
	return err
}

// ask sends a request, waits for the response, and returns the result.
func ask(ws *wsConn, id, method, params string) (json.RawMessage, error) {
	if err := ws.say(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params)); err != nil {
		return nil, err
	}
	message, err := ws.message()
	if err != nil {
		return nil, err
	}
	var answer struct{ ID, Result, Error json.RawMessage }
	if err := json.Unmarshal(message, &answer); err != nil {
		return nil, err
	}
	if string(answer.ID) != id || answer.Error != nil {
		return nil, fmt.Errorf("%s was answered with %.300s", method, message)
	}
	return answer.Result, nil
}

// subscribe sends a NATS client's login and subscription, and waits until the server
// has handled them.
func subscribe(ws *wsConn, subject string) error {
	hello := "CONNECT {\"verbose\":false,\"pedantic\":false,\"protocol\":1}\r\nSUB " + subject + " 1\r\nPING\r\n"
	if err := ws.send(opBinary, []byte(hello)); err != nil {
		return err
	}
	var said []byte
	for !bytes.Contains(said, []byte("PONG\r\n")) {
		f, err := ws.next()
		if err != nil {
			return err
		}
		said = append(said, f.payload...)
	}
	return nil
}

// rejoin connects a reader again, and handles the actions that it has missed.
func (r *reader) rejoin(ctx context.Context) (*wsConn, error) {
	g := r.group
	ws, err := dialWS(ctx, g.args.url(), TokenOf(g.args.Tokens, r.index), g.args.Seal)
	if err != nil {
		return nil, err
	}
	result, err := ask(ws, "1", "reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"%s-%d","lastSeenServerSeq":%d,"subscriptions":[%q]}`,
		g.args.Group, r.index, r.seq, g.args.Channel))
	if err == nil {
		err = r.takeReplay(result)
	}
	if err != nil {
		_ = ws.Close()
		return nil, err
	}
	return ws, nil
}

func (r *reader) takeReplay(result []byte) error {
	var replay struct{ Actions []json.RawMessage }
	if err := json.Unmarshal(result, &replay); err != nil {
		return err
	}
	r.group.loop.mu.Lock()
	defer r.group.loop.mu.Unlock()
	before := r.group.frames
	defer func() { r.group.counter.Add(r.group.frames - before) }()
	for _, params := range replay.Actions {
		action := append(append([]byte(actionStart), params...), '}')
		if err := r.takeAction(action, 0); err != nil {
			return err
		}
	}
	return nil
}

// takeCounted is take. It also adds the number of frames to the counter that the host
// reads.
func (r *reader) takeCounted(b []byte, now int64) (used int, err error) {
	before := r.group.frames
	used, err = r.take(b, now)
	r.group.counter.Add(r.group.frames - before)
	return used, err
}

// take handles received bytes. It returns the length of the complete frames in them.
func (r *reader) take(b []byte, now int64) (used int, err error) {
	for {
		f, n, err := r.next(b[used:])
		if err != nil || n == 0 {
			return used, err
		}
		used += n
		switch f.op {
		case opPing:
			err = r.write(appendMasked(nil, opPong, f.payload))
		case opPong:
		case opClose:
			err = errors.New(closeText(f.payload))
		default:
			err = r.takePayload(f, now)
		}
		if err != nil {
			return used, err
		}
	}
}

// next returns the frame at the beginning of b, and its length. If the frame is
// incomplete, the length is 0. NATS sends its stream in frames of any size, so there,
// the received part of a frame counts as a frame.
func (r *reader) next(b []byte) (f frame, used int, err error) {
	if r.group.args.Kind != NATS {
		return nextFrame(b)
	}
	if r.left == 0 {
		h, ok, err := readHead(b)
		if err != nil || !ok || h.op >= opClose {
			f, used, err := nextFrame(b)
			return f, used, err
		}
		b, used, r.left = b[h.size:], h.size, h.length
	}
	n := min(len(b), r.left)
	r.left -= n
	return frame{op: opBinary, payload: b[:n]}, used + n, nil
}

func (r *reader) takePayload(f frame, now int64) error {
	if r.group.args.Kind == NATS {
		return r.takeNATS(f.payload, now)
	}
	if r.sealing != nil && f.op == opText {
		return errPlain
	}
	if (f.op != opContinuation) != (len(r.stream) == 0) {
		return errors.New("a continuation frame follows a whole action, or an action begins within another")
	}
	action := f.payload
	if !f.fin || len(r.stream) > 0 { // without credit for the whole message, it comes in several parts
		r.stream = append(r.stream, f.payload...)
		action = r.stream
	}
	if !f.fin {
		return nil
	}
	r.stream = nil
	if r.sealing != nil {
		return r.sealing.open(action, func(message []byte) error { return r.takeAction(message, now) })
	}
	return r.takeAction(action, now)
}

// takeAction returns an error unless an action is the next expected action.
func (r *reader) takeAction(action []byte, now int64) error {
	g := r.group
	if g.format == nil {
		return fmt.Errorf("a reader that expects no actions received %.200s", action)
	}
	n, at, ok := g.format.Check(action)
	if !ok {
		return fmt.Errorf("after action %d, the reader received %.300q; want the next action", r.action, action)
	}
	if r.action != 0 && n != r.action+1 {
		return fmt.Errorf("after action %d, the reader received action %d; want the next", r.action, n)
	}
	r.action = n
	r.seq, _ = number(action[len(g.format.fixed[0]):][:numberDigits])
	if r.quiet {
		return nil
	}
	g.frames++
	if g.timed && now > 0 {
		g.delays = append(g.delays, time.Duration(now-at))
	}
	return nil
}

// takeNATS handles a piece of NATS's client protocol.
func (r *reader) takeNATS(piece []byte, now int64) error {
	b := piece
	if len(r.stream) > 0 {
		b = append(r.stream, piece...)
	}
	for {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		if !ok {
			break
		}
		switch {
		case bytes.HasPrefix(line, []byte("MSG ")):
			size, err := strconv.Atoi(string(line[bytes.LastIndexByte(line, ' ')+1:]))
			if err != nil {
				return err
			}
			if len(rest) < size+2 {
				r.stream = append(r.stream[:0], b...)
				return nil
			}
			if err := r.takeAction(rest[:size], now); err != nil {
				return err
			}
			rest = rest[size+2:]
		case string(line) == "PING":
			if err := r.write(appendMasked(nil, opBinary, []byte("PONG\r\n"))); err != nil {
				return err
			}
		case bytes.HasPrefix(line, []byte("-ERR")):
			return errors.New(string(line))
		}
		b = rest
	}
	r.stream = append(r.stream[:0], b...)
	return nil
}

// write writes a few bytes, for which the socket always has room.
func (r *reader) write(b []byte) error {
	if r.tls != nil {
		_, err := r.tls.Write(b)
		return err
	}
	n, err := unix.Write(r.fd, b)
	if err == nil && n < len(b) {
		err = errors.New("the socket had no room for a few bytes")
	}
	return err
}

// end closes a reader's connection, and records why it ended.
func (r *reader) end(err error) {
	r.hangUp()
	r.group.ended = append(r.group.ended, fmt.Sprintf("%s-%d: %v", r.group.args.Group, r.index, err))
}

// hangUp closes the connection.
func (r *reader) hangUp() {
	if r.tls != nil {
		_ = r.tls.Close()
	} else if r.fd >= 0 {
		_ = unix.Close(r.fd)
	}
	r.tls, r.fd = nil, -1
}

// behind returns the readers that have not received an action.
func (g *group) behind(action int64) (list []int) {
	g.loop.mu.Lock()
	defer g.loop.mu.Unlock()
	for _, r := range g.readers {
		if r.action < action {
			list = append(list, r.index)
		}
	}
	return list
}

// close closes all connections, without recording them as ended.
func (g *group) close() {
	g.loop.mu.Lock()
	defer g.loop.mu.Unlock()
	for _, r := range g.readers {
		r.hangUp()
		r.rest, r.stream, r.left = nil, nil, 0
	}
	g.ended = nil
}
