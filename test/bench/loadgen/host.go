package loadgen

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A Host is an AHP host that streams when a benchmark asks for it. It serves
// initialize, reconnect, ping, subscribe and resourceRead.
type Host struct {
	counters *Counters
	server   *http.Server
	url      string
	serving  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	topics map[string]*topic
	seq    int64 // last serverSeq
	nats   map[string]*nats.Conn
	feeds  map[string]net.Conn
	conns  map[*hostConn]bool
	asked  map[string]int64 // number of requests, by method
}

// A topic is the stream on a channel.
type topic struct {
	channel string

	mu     sync.Mutex // held while actions are sent
	format *Format
	conns  map[*hostConn]bool
	said   []saying // actions so far: action n is said[n-1]
}

// A saying has the parts of an action that do not follow from its number.
type saying struct{ seq, at int64 }

func newHost(counters *Counters) (*Host, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &Host{
		counters: counters, url: "ws://" + l.Addr().String(),
		topics: map[string]*topic{}, nats: map[string]*nats.Conn{}, feeds: map[string]net.Conn{}, conns: map[*hostConn]bool{}, asked: map[string]int64{},
	}
	h.server = &http.Server{Handler: http.HandlerFunc(h.serve), ReadHeaderTimeout: dialTime}
	h.serving.Go(func() { _ = h.server.Serve(l) })
	return h, nil
}

func (h *Host) close() {
	_ = h.server.Close()
	h.mu.Lock()
	for c := range h.conns {
		_ = c.Close()
	}
	for _, c := range h.nats {
		c.Close()
	}
	for _, c := range h.feeds {
		_ = c.Close()
	}
	h.mu.Unlock()
	h.serving.Wait()
}

// None stands for missing arguments or results of a method.
type None struct{}

// URL returns the URL at which clients reach the host.
func (h *Host) URL(_ None, url *string) error {
	*url = h.url
	return nil
}

// Asked returns how many requests with a method the host has received.
func (h *Host) Asked(method string, n *int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	*n = h.asked[method]
	return nil
}

// topic returns the topic of a channel. It makes an empty one if the channel has none.
func (h *Host) topic(channel string) *topic {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		t = &topic{channel: channel, conns: map[*hostConn]bool{}}
		h.topics[channel] = t
	}
	return t
}

// A hostConn is the connection of a client.
type hostConn struct {
	*wsConn
	mu     sync.Mutex // held while a frame is written
	topics []*topic   // only the goroutine that reads uses it
}

func (h *Host) serve(w http.ResponseWriter, r *http.Request) {
	ws, err := acceptWS(w, r)
	if err != nil {
		return
	}
	c := &hostConn{wsConn: ws}
	h.mu.Lock()
	h.conns[c] = true
	h.serving.Add(1)
	h.mu.Unlock()
	go func() { // a new goroutine, so that net/http can free its own and its buffers
		defer h.serving.Done()
		h.listen(c)
	}()
}

// listen answers the client's requests until the connection ends.
func (h *Host) listen(c *hostConn) {
	defer func() {
		for _, t := range c.topics {
			t.leave(c)
		}
		h.mu.Lock()
		delete(h.conns, c)
		h.mu.Unlock()
		_ = c.Close()
	}()
	for {
		message, err := c.message()
		if err != nil {
			return
		}
		if err := h.hear(c, message); err != nil {
			return
		}
	}
}

func (c *hostConn) say(message []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.send(opText, message)
}

// A request has the members of a client's message that the host reads.
type request struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Channel              string
		URI                  string
		ProtocolVersions     []string
		InitialSubscriptions []string
		Subscriptions        []string
		LastSeenServerSeq    int64
	}
}

func (h *Host) hear(c *hostConn, message []byte) error {
	var r request
	if err := json.Unmarshal(message, &r); err != nil || r.ID == nil {
		return err // notifications change nothing at this host
	}
	h.mu.Lock()
	h.asked[r.Method]++
	h.mu.Unlock()
	p := &r.Params
	switch r.Method {
	case "ping":
		return c.result(r.ID, "null")
	case "initialize":
		if len(p.ProtocolVersions) == 0 {
			return c.say(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32005,"message":"no version","data":{"supportedVersions":["0.9.0"]}}}`, r.ID))
		}
		h.join(c, p.InitialSubscriptions)
		return c.result(r.ID, `{"protocolVersion":"0.9.0","serverSeq":0,"snapshots":[],"serverInfo":{"name":"loadgen","version":"1"}}`)
	case "subscribe":
		if strings.HasPrefix(p.Channel, sessionScheme) {
			state, err := snapshot(p.Channel)
			if err != nil {
				return err
			}
			h.join(c, []string{p.Channel})
			return c.result(r.ID, `{"snapshot":`+string(state)+"}")
		}
		h.join(c, []string{p.Channel})
		return c.result(r.ID, "{}")
	case "reconnect":
		return h.replay(c, &r)
	case "resourceRead":
		return c.resource(r.ID, p.URI)
	}
	return c.say(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, r.ID))
}

func (c *hostConn) result(id json.RawMessage, result string) error {
	return c.say(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result))
}

// join subscribes a client to channels.
func (h *Host) join(c *hostConn, channels []string) {
	for _, name := range channels {
		t := h.topic(name)
		t.mu.Lock()
		t.conns[c] = true
		t.mu.Unlock()
		c.topics = append(c.topics, t)
	}
}

func (t *topic) leave(c *hostConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// replay answers reconnect with the actions that the client has missed on a channel,
// and subscribes the client.
func (h *Host) replay(c *hostConn, r *request) error {
	if len(r.Params.Subscriptions) != 1 {
		return errors.New("this host serves reconnect for one channel only")
	}
	t := h.topic(r.Params.Subscriptions[0])
	t.mu.Lock()
	defer t.mu.Unlock()
	b := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"type":"replay","actions":[`, r.ID)
	first := true
	for i, s := range t.said {
		if s.seq <= r.Params.LastSeenServerSeq-firstNumber {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		action := t.format.Append(nil, s.seq, int64(i+1), s.at)
		b = append(b, action[len(actionStart):len(action)-1]...)
	}
	b = append(b, `],"missing":[]}}`...)
	t.conns[c] = true
	c.topics = append(c.topics, t)
	return c.say(b)
}

// ResourceURI returns a URI. The response to a read of it has size bytes.
func ResourceURI(size int) string { return "file:///load/" + strconv.Itoa(size) }

// answerParts returns the text before and after the data in a response with size bytes,
// and the length of the data.
func answerParts(id []byte, size int) (head, tail string, data int, err error) {
	head, tail = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"data":"`, id), `","encoding":"utf-8"}}`
	if data = size - len(head) - len(tail); data < 0 {
		return "", "", 0, fmt.Errorf("no answer can have %d bytes", size)
	}
	return head, tail, data, nil
}

// resource answers a read of a URI from [ResourceURI].
func (c *hostConn) resource(id json.RawMessage, uri string) error {
	size, err := strconv.Atoi(strings.TrimPrefix(uri, ResourceURI(0)[:len(ResourceURI(0))-1]))
	if err != nil {
		return err
	}
	head, tail, left, err := answerParts(id, size)
	if err != nil {
		return err
	}
	all := corpus()
	parts := net.Buffers{append(appendHead(nil, opText, size, 0), head...)}
	for ; left > 0; left -= len(parts[len(parts)-1]) {
		parts = append(parts, all[:min(left, len(all))])
	}
	parts = append(parts, []byte(tail))
	c.mu.Lock()
	defer c.mu.Unlock()
	if size < 64<<10 { // real hosts also send such a response in a single write
		var b []byte
		for _, p := range parts {
			b = append(b, p...)
		}
		_, err := c.Write(b)
		return err
	}
	_, err = parts.WriteTo(c.Conn)
	return err
}

// natsConn returns a connection to NATS at a URL, and opens it if necessary.
func (h *Host) natsConn(url string) (*nats.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.nats[url]; c != nil {
		return c, nil
	}
	c, err := connectNATS(url)
	if err == nil {
		h.nats[url] = c
	}
	return c, err
}

// feed returns a connection to a [Writer] for a channel's messages, and opens it if
// necessary.
func (h *Host) feed(address, channel string) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := address + " " + channel
	if c := h.feeds[key]; c != nil {
		return c, nil
	}
	c, err := net.DialTimeout("tcp", address, dialTime)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(appendFed(nil, []byte(channel))); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	h.feeds[key] = c
	return c, nil
}

// appendFed appends a message in the form in which a [Writer] reads it.
func appendFed(b, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(message))), message...)
}

// waitStep is the pause before the host looks again how much clients have read.
const waitStep = 100 * time.Microsecond
