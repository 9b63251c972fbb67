package agents

import (
	"net"
	"slices"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
)

// A counted is a tunnel whose count of read messages the test sets. It records pings
// and Kill.
type counted struct {
	reads  uint32
	pinged []string
	killed bool
}

func (*counted) Stream() net.Conn            { return nil }
func (*counted) Close(ahp.CloseCode, string) {}
func (c *counted) Kill()                     { c.killed = true }
func (c *counted) Ping(payload string)       { c.pinged = append(c.pinged, payload) }
func (c *counted) Reads() uint32             { return c.reads }

// A host-agent sends a message every 4 s, and another falls silent after 5 s.
// checkSilence finds only the second, once agentSilence has passed since its last
// message.
func TestSilentHostAgentIsFound(t *testing.T) {
	var all tunnels
	brings, ceases := &counted{}, &counted{}
	speaks, falls := all.join(brings, auth.Enrolment{}, false), all.join(ceases, auth.Enrolment{}, false)
	now := speaks.since
	const spoke = 5
	for second := range 60 {
		now = now.Add(time.Second)
		if second%4 == 0 {
			brings.reads++
		}
		if second < spoke {
			ceases.reads++
		}
		silent := all.checkSilence(now)
		lost := now.Sub(falls.since) > (spoke-1)*time.Second+agentSilence
		if found := len(silent) == 1 && silent[0] == falls; found != lost || len(silent) > 1 {
			t.Fatalf("%v after the beginning these are silent: %v; want %v", now.Sub(falls.since), silent, lost)
		}
		if ago := now.Sub(speaks.lastHeard()); ago < time.Second && second > 0 || ago > 5*time.Second {
			t.Fatalf("the connection that sends every 4 s was last heard %v ago; want 1 to 5 s", ago)
		}
	}
	all.leave(falls)
	if silent := all.checkSilence(now.Add(time.Second)); len(silent) > 0 {
		t.Errorf("a connection that has ended is listed as silent; want it removed")
	}
}

// TestIdleConnectionMayBeSilent: checkSilence finds an idle connection only after two
// to three missing pings. Once a host-agent uses the connection, agentSilence applies.
func TestIdleConnectionMayBeSilent(t *testing.T) {
	var all tunnels
	idle := all.join(&counted{}, auth.Enrolment{}, true)
	at := func(d time.Duration) bool { return len(all.checkSilence(idle.since.Add(d))) > 0 }
	if at(2*broker.StandbyPing) || !at(3*broker.StandbyPing) {
		t.Error("an idle connection must be silent after three missing pings, and not after two")
	}
	all.use(idle)
	if at(agentSilence-time.Second) || !at(agentSilence+time.Second) {
		t.Error("a connection taken into use must be silent after agentSilence, and not a second earlier")
	}
}

// TestConnectionsAreAdvisedToMove: Advise sends broker.MoveAdvice over a connection in
// use, and kills an idle connection.
func TestConnectionsAreAdvisedToMove(t *testing.T) {
	api := &API{Config: Config{Spawn: func(f func()) bool { f(); return true }}}
	used, idle := &counted{}, &counted{}
	api.tunnels.join(used, auth.Enrolment{}, false)
	api.tunnels.join(idle, auth.Enrolment{}, true)
	api.Advise()
	if !slices.Equal(used.pinged, []string{broker.MoveAdvice}) || used.killed || idle.pinged != nil || !idle.killed {
		t.Errorf("connection in use: %+v; want the advice to move and no kill; idle connection: %+v; want it killed", used, idle)
	}
}
