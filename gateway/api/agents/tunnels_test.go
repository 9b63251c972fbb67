package agents

import (
	"net"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A counted tunnel has read that many messages.
type counted struct{ reads uint32 }

func (*counted) Stream() net.Conn            { return nil }
func (*counted) Close(ahp.CloseCode, string) {}
func (*counted) Kill()                       {}
func (c *counted) Reads() uint32             { return c.reads }

// A host-agent counts as heard when its WebSocket reads a message, and as silent only
// after agentSilence.
func TestSilentHostAgentIsFound(t *testing.T) {
	var all tunnels
	brings, ceases := &counted{}, &counted{}
	speaks, falls := all.join(brings, auth.Enrolment{}), all.join(ceases, auth.Enrolment{})
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
			t.Fatalf("one that speaks every 4 s was heard %v ago", ago)
		}
	}
	all.leave(falls)
	if silent := all.checkSilence(now.Add(time.Second)); len(silent) > 0 {
		t.Errorf("one that has gone is silent")
	}
}
