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

// benchAction is an action of 512 bytes, which a client has asked for.
func benchAction() []byte { return benchActionOf(`,"origin":{"clientId":"client-a","clientSeq":3}`) }

// benchOwnAction is an action of 512 bytes of the host's own: it may say what
// belongs to its channel.
func benchOwnAction() []byte { return benchActionOf("") }

func benchActionOf(origin string) []byte {
	const frame = `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/delta",` +
		`"turnId":"a6c7a0d4","partId":"part-1","content":"%s"},"serverSeq":2402%s}}`
	return fmt.Appendf(nil, frame, strings.Repeat("x", 512-len(origin)-len(frame)+len("%s%s")), origin)
}

// benchConn returns a connection to the host that nobody reads.
func benchConn(t testing.TB, open routing.Open) *hostConn {
	a, err := newAgent(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.canvases.Close)
	c := &hostConn{agent: a, open: open, policy: a.policy(open), log: a.cfg.Log}
	c.gates = a.chain(c, open, a.subjects.Enter(a.who(open, c.policy)))
	return c
}

// judge is what all that reads frames does with one of the host's: see
// hostConn.fromHost.
func (c *hostConn) judge(message []byte) bool {
	env := &c.said
	var err error
	if *env, err = ahp.Peek(message); err != nil {
		return false
	}
	d, _ := c.gates.FromHost(message, env)
	return d.Verdict == gate.Pass
}

// A benchToken is what a client may do.
type benchToken struct {
	name string
	open routing.Open
	own  bool // the action is the host's own
}

func (t *benchToken) frame() []byte {
	if t.own {
		return benchOwnAction()
	}
	return benchAction()
}

// benchTokens are what clients may do, from all to little.
var benchTokens = []benchToken{
	{"write", routing.Open{ID: "c", Subject: "ada", Access: "write"}, false},
	{"read", routing.Open{ID: "c", Subject: "ada", Access: "read"}, false},
	{"channels", benchChannels, false},
	{"learning", benchChannels, true},
	{"strict", routing.Open{ID: "c", Subject: "ada", Access: "write", Strict: true}, false},
}

// benchChannels is a client that may use some channels.
var benchChannels = routing.Open{ID: "c", Subject: "ada", Access: "write", Channels: []string{"ahp-session:/2", "ahp-chat:/*"}}

// TestGatesCostNoMemory is what each frame of a busy host depends on, whoever
// the client is.
func TestGatesCostNoMemory(t *testing.T) {
	for _, token := range benchTokens {
		c, frame := benchConn(t, token.open), token.frame()
		n := testing.AllocsPerRun(100, func() {
			if !c.judge(frame) {
				t.Error("the action does not pass")
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations; want none", token.name, n)
		}
	}
}

// BenchmarkGates is the cost of all that reads frames for an action of 512
// bytes, by what the client may do; and, to compare with, that of decoding
// what routing must know with encoding/json.
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
					b.Fatal("the action does not pass")
				}
			}
		})
	}
	b.Run("copy", func(b *testing.B) { // of a message that another client has got
		c := benchConn(b, benchTokens[0].open)
		env, err := ahp.Peek(frame)
		if err != nil {
			b.Fatal(err)
		}
		c.agent.frames.add(frame, &env, c.last)
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		for b.Loop() {
			known, env, err := c.look(frame)
			if err != nil || known == nil {
				b.Fatal("the action is not known")
			}
			if d, _ := c.gates.FromHost(frame, env); d.Verdict != gate.Pass {
				b.Fatal("the action does not pass")
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
