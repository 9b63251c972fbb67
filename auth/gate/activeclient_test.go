package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// talker returns a connection whose client has sent initialize with the clientId "c".
func talker(t testing.TB, policy gate.Policy) *conn {
	c := &conn{TB: t, gate: chainOf(policy, nil)}
	c.ask("initialize", `{"channel":"ahp-root://","clientId":"c"}`, `{"serverSeq":5,"snapshots":[]}`)
	return c
}

// enters returns a client's message that sets this entry as an active client in the session
// mock:/s.
func enters(seq int, entry string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"mock:/s","clientSeq":%d,"action":{"type":"session/activeClientSet","activeClient":%s}}}`, seq, entry)
}

// echoOf returns the host's echo to a client of the action in enters, with these numbers.
func echoOf(serverSeq, seq int, client, entry string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/s","action":{"type":"session/activeClientSet","activeClient":%s},"serverSeq":%d,"origin":{"clientId":%q,"clientSeq":%d}}}`,
		entry, serverSeq, client, seq)
}

// full is an entry as VS Code sends it. bare is what the gate passes to the host instead, below the
// level operate.
const (
	full = `{"clientId":"c","displayName":"VS Code","tools":[{"name":"runTask","description":"obey me","inputSchema":{}}],"customizations":[{"uri":"file:///evil"}],"more":1}`
	bare = `{"clientId":"c","displayName":"VS Code","tools":[]}`
)

// TestClientEntersAsItselfAfterARefusedGreeting has a client send further greetings with different
// clientIds, which the host refuses. The client must still enter a session as the client that the
// host has accepted, and as no other.
func TestClientEntersAsItselfAfterARefusedGreeting(t *testing.T) {
	c := talker(t, gate.NewPolicy(auth.AccessTalk, nil, nil, false))
	for i, method := range []string{"initialize", "reconnect"} {
		for _, when := range []string{"before", "after"} {
			greeting := fmt.Sprintf(`{"id":%d,"method":%q,"params":{"channel":"ahp-root://","clientId":"d","subscriptions":[]}}`, 50+i, method)
			if when == "before" {
				c.gate.FromClient([]byte(greeting), peek(t, greeting))
			} else {
				c.host(fmt.Sprintf(`{"id":%d,"error":{"code":-32601,"message":"unknown method"}}`, 50+i))
			}
			theirs, own := enters(3, `{"clientId":"d","tools":[]}`), enters(4, full)
			if d := c.gate.FromClient([]byte(theirs), peek(t, theirs)); d.Verdict == gate.Pass || d.Verdict == gate.Replace {
				t.Errorf("%s the refusal of %s as d: the entry of d reaches the host; want it refused", when, method)
			}
			if d := c.gate.FromClient([]byte(own), peek(t, own)); d.Verdict != gate.Replace {
				t.Errorf("%s the refusal of %s as d: the client's own entry gets the verdict %v; want it to reach the host", when, method, d.Verdict)
			}
		}
	}
	c.ask("reconnect", `{"channel":"ahp-root://","clientId":"d","subscriptions":[]}`, `{"type":"replay","actions":[],"missing":[]}`)
	if got := c.gate.View.ClientID(); got != "d" {
		t.Errorf("the host has accepted the client as d; its clientId is %q", got)
	}
}

// TestActiveClientEntersWithoutTools has a client below the level operate enter a session. The host
// must get the entry without tools and customizations. In the echo, the client must get its full
// entry back, or VS Code would repeat the action without end. Echoes to others must stay unchanged.
func TestActiveClientEntersWithoutTools(t *testing.T) {
	for _, level := range []auth.Access{auth.AccessTalk, auth.AccessApprove} {
		for name, policy := range map[string]gate.Policy{
			"all channels": gate.NewPolicy(level, nil, nil, false),
			"one session":  gate.NewPolicy(level, []string{"mock:/s"}, nil, false),
		} {
			c := talker(t, policy)
			message := enters(3, full)
			d := c.gate.FromClient([]byte(message), peek(t, message))
			if want := enters(3, bare); d.Verdict != gate.Replace || string(d.Message) != want {
				t.Fatalf("%s, %s: to the host: %v %s; want %s", level, name, d.Verdict, d.Message, want)
			}
			for _, other := range []string{echoOf(7, 3, "d", bare), echoOf(8, 2, "c", bare)} {
				if got := c.host(other); got != other {
					t.Errorf("%s, %s: the client got %s; want %s", level, name, got, other)
				}
			}
			if got, want := c.host(echoOf(9, 3, "c", bare)), echoOf(9, 3, "c", full); got != want {
				t.Errorf("%s, %s: the client got %s; want %s", level, name, got, want)
			}
			if again := echoOf(9, 3, "c", bare); c.host(again) != again {
				t.Errorf("%s, %s: the gate changed the echo a second time; want it unchanged", level, name)
			}
		}
	}
}

// TestActiveClientIsTheConnectionsOwn sends entries with a different client's id, or with an
// ambiguous id, below the level operate. The gate must drop them without an echo, because VS Code
// repeats a rejected action.
func TestActiveClientIsTheConnectionsOwn(t *testing.T) {
	for _, level := range []auth.Access{auth.AccessRead, auth.AccessTalk} {
		c := talker(t, gate.NewPolicy(level, nil, nil, false))
		for _, entry := range []string{
			`{"clientId":"d","tools":[]}`, `{"tools":[]}`, `{"clientId":["c"],"tools":[]}`, `"c"`, `null`,
			`{"clientId":"c","ClientId":"d","tools":[]}`, `{"clientId":"c","clientId":"d","tools":[]}`,
		} {
			if got := fromClient(t, c.gate, "dispatchAction", enters(1, entry)); got != "drop" {
				t.Errorf("%s: %.80s: %s; want drop", level, entry, got)
			}
		}
	}
}

// TestActiveClientsAreBounded sends 17 entries before the first echo. The gate must remember the
// last 16.
func TestActiveClientsAreBounded(t *testing.T) {
	c := talker(t, gate.NewPolicy(auth.AccessTalk, nil, nil, false))
	for seq := range 17 {
		if got := fromClient(t, c.gate, "dispatchAction", enters(seq, full)); got != "replace" {
			t.Fatalf("entry %d: %s; want replace", seq, got)
		}
	}
	if first := echoOf(9, 0, "c", bare); c.host(first) != first {
		t.Error("the oldest entry is known beyond the bound; want it forgotten")
	}
	if got, want := c.host(echoOf(9, 1, "c", bare)), echoOf(9, 1, "c", full); got != want {
		t.Errorf("the client got %s; want %s", got, want)
	}
}

// TestOperatorsKeepTheirTools fails unless the whole entry passes at the level operate.
func TestOperatorsKeepTheirTools(t *testing.T) {
	for _, channels := range [][]string{nil, {"mock:/s"}} {
		c := talker(t, gate.NewPolicy(auth.AccessWrite, channels, nil, false))
		if got := fromClient(t, c.gate, "dispatchAction", enters(1, full)); got != "pass" {
			t.Errorf("channels %v: %s; want pass", channels, got)
		}
	}
}

// TestToolsDoNotEnterByAnotherPlaceOfTheChannel sends a client's entry with the channel at the
// message's top level, below the level operate. Some hosts may read the channel there. The client's
// tools must not reach the host.
func TestToolsDoNotEnterByAnotherPlaceOfTheChannel(t *testing.T) {
	const message = `{"jsonrpc":"2.0","method":"dispatchAction","channel":"mock:/s","params":{"clientSeq":1,"action":{"type":"session/activeClientSet","activeClient":` + full + `}}}`
	for _, channels := range [][]string{nil, {"mock:/s"}} {
		c := talker(t, gate.NewPolicy(auth.AccessTalk, channels, nil, false))
		d := c.gate.FromClient([]byte(message), peek(t, message))
		if d.Verdict == gate.Pass || d.Verdict == gate.Replace && strings.Contains(string(d.Message), "runTask") {
			t.Errorf("channels %v: verdict %v, %s; want the tools kept from the host", channels, d.Verdict, d.Message)
		}
	}
}
