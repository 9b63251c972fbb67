package gateway

import (
	"testing"
	"time"

	"ahprelay/auth"
)

// A host-agent counts as heard when its WebSocket brings something, and is found when it
// has brought nothing for too long, and not before.
func TestAgentSilence(t *testing.T) {
	var all agentSocks
	speaks, falls := all.join(&socket{conn: &lockedConn{}}, auth.Enrolment{}), all.join(&socket{conn: &lockedConn{}}, auth.Enrolment{})
	now := speaks.since
	const spoke = 5
	for second := range 60 {
		now = now.Add(time.Second)
		if second%4 == 0 {
			speaks.conn.reads.Add(1)
		}
		if second < spoke {
			falls.conn.reads.Add(1)
		}
		silent := all.look(now)
		lost := now.Sub(falls.since) > (spoke-1)*time.Second+agentSilence
		if found := len(silent) == 1 && silent[0] == falls; found != lost || len(silent) > 1 {
			t.Fatalf("%v after the beginning these are silent: %v; want %v", now.Sub(falls.since), silent, lost)
		}
		if ago := now.Sub(speaks.lastHeard()); ago < time.Second && second > 0 || ago > 5*time.Second {
			t.Fatalf("one that speaks every 4 s was heard %v ago", ago)
		}
	}
	all.leave(falls)
	if silent := all.look(now.Add(time.Second)); len(silent) > 0 {
		t.Errorf("one that has gone is silent")
	}
}
