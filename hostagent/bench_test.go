package hostagent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
	"ahprelay/routing"
)

// benchAction returns an action of 512 bytes with a client as its origin.
func benchAction() []byte { return benchActionOf(`,"origin":{"clientId":"client-a","clientSeq":3}`) }

// benchOwnAction returns an action of 512 bytes without an origin: the host's own.
func benchOwnAction() []byte { return benchActionOf("") }

func benchActionOf(origin string) []byte {
	const frame = `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/delta",` +
		`"turnId":"a6c7a0d4","partId":"part-1","content":"%s"},"serverSeq":2402%s}}`
	return fmt.Appendf(nil, frame, strings.Repeat("x", 512-len(origin)-len(frame)+len("%s%s")), origin)
}

// benchConn returns a connection to the host that no goroutine reads. It has the gates for a client
// with the authority open.
func benchConn(t testing.TB, open routing.Open) *hostConn {
	a, err := newAgent(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.canvases.Close)
	c := &hostConn{agent: a, conn: &clientLine{}, open: open, policy: a.policy(open), log: a.cfg.Log}
	c.writer.c, c.reader.c = c, c
	c.gates = a.chain(c, open, a.subjects.Enter(a.who(open, c.policy)))
	return c
}

// judge parses a host's message and passes it through the gates, as hostReader.fromHost does. It
// returns whether the message passes.
func (c *hostConn) judge(message []byte) bool {
	env := &c.reader.env
	var err error
	if *env, err = ahp.Peek(message); err != nil {
		return false
	}
	d, _ := c.gates.FromHost(message, env)
	return d.Verdict == gate.Pass
}

// A benchToken is a client's authority, and the action that the host sends to this client.
type benchToken struct {
	name string
	open routing.Open
	own  bool // the action has no origin: it is the host's own
}

func (t *benchToken) frame() []byte {
	if t.own {
		return benchOwnAction()
	}
	return benchAction()
}

// benchTokens lists authorities, from all rights to few.
var benchTokens = []benchToken{
	{"write", routing.Open{ID: "c", Subject: "ada", Access: "write"}, false},
	{"read", routing.Open{ID: "c", Subject: "ada", Access: "read"}, false},
	{"channels", benchChannels, false},
	{"learning", benchChannels, true},
	{"strict", routing.Open{ID: "c", Subject: "ada", Access: "write", Strict: true}, false},
}

// benchChannels is the authority of a client that may use only a few channels.
var benchChannels = routing.Open{ID: "c", Subject: "ada", Access: "write", Channels: []string{"ahp-session:/2", "ahp-chat:/*"}}

// TestGatesCostNoMemory passes an action through the gates of clients with different authority. The
// gates must not allocate memory.
func TestGatesCostNoMemory(t *testing.T) {
	for _, token := range benchTokens {
		c, frame := benchConn(t, token.open), token.frame()
		n := testing.AllocsPerRun(100, func() {
			if !c.judge(frame) {
				t.Error("the gates stop the action; want it to pass")
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations; want none", token.name, n)
		}
	}
}

// BenchmarkGates measures parsing an action of 512 bytes and its way through the gates, for each
// authority. For comparison, it also measures decoding the same bytes with encoding/json.
func BenchmarkGates(b *testing.B) {
	frame := benchAction()
	for _, token := range benchTokens {
		b.Run(token.name, func(b *testing.B) {
			c := benchConn(b, token.open)
			frame := token.frame()
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			for b.Loop() {
				if !c.judge(frame) {
					b.Fatal("the gates stop the action; want it to pass")
				}
			}
		})
	}
	b.Run("copy", func(b *testing.B) { // a message that the host has already sent to another client
		c := benchConn(b, benchTokens[0].open)
		env, err := ahp.Peek(frame)
		if err != nil {
			b.Fatal(err)
		}
		c.agent.frames.add(frame, &env, c.reader.last)
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		for b.Loop() {
			known, env, err := c.reader.parse(frame)
			if err != nil || known == nil {
				b.Fatal("the reader does not find the action in its cache; want it known")
			}
			if d, _ := c.gates.FromHost(frame, env); d.Verdict != gate.Pass {
				b.Fatal("the gate stops the action from the host; want it to pass")
			}
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		for b.Loop() {
			var message struct {
				ID     json.RawMessage
				Method string
				Params struct{ Channel string }
			}
			if err := json.Unmarshal(frame, &message); err != nil || message.Params.Channel != "ahp-chat:/1" {
				b.Fatal(message, err)
			}
		}
	})
}
