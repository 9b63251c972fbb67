package registry

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/broker/link"
)

func TestLatestLeaseDecidesThePresence(t *testing.T) {
	day := time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	at := func(hour int) time.Time { return day.Add(time.Duration(hour) * time.Hour) }
	now := at(9)
	up, down := Presence{State: Online}, Presence{State: Offline, Reason: "refused"}
	stopped := Presence{State: Offline, Reason: reasonStopped}
	mine := func(seq uint64, p Presence) *lease {
		return &lease{Instance: "me", Acquired: at(1), Seq: seq, Since: at(2), Presence: p}
	}
	theirs := &lease{Instance: "they", Acquired: at(3), Seq: 99, Since: at(4), Presence: up}
	released := func(l *lease) *lease {
		c := *l
		c.Released, c.Presence = true, stopped
		return &c
	}
	hold := func(seq uint64, p Presence) leaseRequest {
		return leaseRequest{Op: opHold, Instance: "me", Seq: seq, Presence: p}
	}
	silent := func(ms int64) Presence { return Presence{State: Online, Silent: ms} }
	hushed := mine(5, silent(4000))
	hushed.Silent = at(7)
	takeOver := hold(1, up)
	takeOver.TakeOver = true
	release := leaseRequest{Op: opRelease, Instance: "me", Seq: 7}
	crash := leaseRequest{Op: opRelease, Instance: "me", Seq: crashSeq, Reason: "crashed"}
	crashed := mine(crashSeq, Presence{State: Offline, Reason: "crashed"})
	crashed.Released, crashed.Since = true, now

	tests := []struct {
		name    string
		current *lease
		down    time.Time // since when the host is offline; zero: online
		req     leaseRequest
		next    *lease
		result  leaseResult
	}{
		{"the first lease", nil, time.Time{}, hold(1, up),
			&lease{Instance: "me", Acquired: now, Seq: 1, Since: now, Presence: up}, leaseHeld},
		{"still offline, since before the agent was away", nil, at(5), hold(1, down),
			&lease{Instance: "me", Acquired: now, Seq: 1, Since: at(5), Presence: down}, leaseHeld},
		{"online again", nil, at(5), hold(1, up),
			&lease{Instance: "me", Acquired: now, Seq: 1, Since: now, Presence: up}, leaseHeld},
		// The host was away, but its stored state does not show that.
		{"online, and the record says so", nil, time.Time{}, hold(1, up),
			&lease{Instance: "me", Acquired: now, Seq: 1, Since: now, Presence: up}, leaseHeld},

		{"renewal", mine(5, up), time.Time{}, hold(6, up),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: at(2), Presence: up}, leaseHeld},
		{"change of state", mine(5, up), time.Time{}, hold(6, down),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: now, Presence: down}, leaseHeld},
		{"falls silent", mine(5, up), time.Time{}, hold(6, silent(5000)),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: at(2), Silent: now.Add(-5 * time.Second), Presence: silent(5000)}, leaseHeld},
		{"is still silent", hushed, time.Time{}, hold(6, silent(5000)),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: at(2), Silent: at(7), Presence: silent(5000)}, leaseHeld},
		{"answers again", hushed, time.Time{}, hold(6, up),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: at(2), Presence: up}, leaseHeld},
		{"is gone", hushed, time.Time{}, hold(6, down),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: now, Presence: down}, leaseHeld},
		{"silent since before time", mine(5, up), time.Time{}, hold(6, silent(math.MaxInt64)),
			&lease{Instance: "me", Acquired: at(1), Seq: 6, Since: at(2), Silent: now.Add(-maxSilent), Presence: silent(math.MaxInt64)}, leaseHeld},
		{"the same request again", mine(5, up), time.Time{}, hold(5, up), nil, leaseHeld},
		{"a request that was overtaken", mine(5, up), time.Time{}, hold(4, down), nil, leaseHeld},

		{"somebody else's", theirs, time.Time{}, hold(1, up), nil, leaseTaken},
		{"taken over", theirs, time.Time{}, takeOver,
			&lease{Instance: "me", Acquired: now, Seq: 1, Since: at(4), Presence: up}, leaseHeld},
		{"given up by somebody else", released(theirs), time.Time{}, hold(1, up),
			&lease{Instance: "me", Acquired: now, Seq: 1, Since: now, Presence: up}, leaseHeld},

		{"release", mine(5, up), time.Time{}, release,
			&lease{Instance: "me", Acquired: at(1), Seq: 7, Released: true, Since: now, Presence: stopped}, leaseReleased},
		{"release in the name of a crashed instance", mine(5, up), time.Time{}, crash, crashed, leaseReleased},
		{"the same for somebody else's", theirs, time.Time{}, crash, nil, leaseReleased},
		{"hold after it", crashed, time.Time{}, hold(6, up), nil, leaseReleased},
		{"release while offline", mine(5, down), time.Time{}, release,
			&lease{Instance: "me", Acquired: at(1), Seq: 7, Released: true, Since: at(2), Presence: stopped}, leaseReleased},
		{"release again", released(mine(7, up)), time.Time{}, release, nil, leaseReleased},
		{"release of nothing", nil, time.Time{}, release, nil, leaseReleased},
		{"release of somebody else's", theirs, time.Time{}, release, nil, leaseReleased},
		{"release of what somebody else gave up", released(theirs), time.Time{}, release, nil, leaseReleased},
		// Sent before the release, but delivered after it.
		{"renewal after the release", released(mine(7, up)), time.Time{}, hold(6, up), nil, leaseReleased},
		{"hold after the release", released(mine(7, up)), time.Time{}, hold(8, up),
			&lease{Instance: "me", Acquired: now, Seq: 8, Since: now, Presence: up}, leaseHeld},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			next, answer := decide(test.current, test.down, 42, test.req, now)
			if diff := cmp.Diff(test.next, next); diff != "" {
				t.Errorf("the lease after the request (-want +got):\n%s", diff)
			}
			if answer.Result != test.result {
				t.Errorf("result %q; want %q", answer.Result, test.result)
			}
			if answer.Result == leaseTaken && (answer.Holder != "they" || !answer.Since.Equal(at(3)) || answer.Revision != 42) {
				t.Errorf("the answer to a refused request is %+v; want holder, since and revision", answer)
			}
		})
	}
}

func TestOversizedPresenceIsRefused(t *testing.T) {
	good := Presence{State: Online, Reason: strings.Repeat("r", maxReasonLen), AgentVersion: strings.Repeat("v", maxVersionLen)}
	if err := good.check(); err != nil {
		t.Errorf("check at the limits = %v; want no error", err)
	}
	for want, p := range map[string]Presence{
		"state":              {State: Incompatible},
		"reason is 257":      {State: Online, Reason: strings.Repeat("r", maxReasonLen+1)},
		"agentVersion is 65": {State: Online, AgentVersion: strings.Repeat("v", maxVersionLen+1)},
		"silent is negative": {State: Online, Silent: -1},
		"hostVersion has":    {State: Online, HostVersion: "1\n2"},
	} {
		if err := p.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check = %v; want an error with %q", err, want)
		}
		if p.State == Online && p.Silent == 0 {
			if err := withDefaults(p).check(); err != nil {
				t.Errorf("check after withDefaults = %v; want no error", err)
			}
		}
	}
	if got := cut("aé\x00\xff", 3); got != "aé" {
		t.Errorf("cut = %q; want aé", got)
	}
}

// FuzzLeaseRequest decides about arbitrary requests. The new lease must be small and belong to the
// sender's instance, and a held host may change its instance only by a takeover.
func FuzzLeaseRequest(f *testing.F) {
	f.Add([]byte(`{"op":"hold","instance":"me","seq":1,"presence":{"state":"online","wire":[1,2]}}`), true)
	f.Add([]byte(`{"op":"release","instance":"they","seq":100}`), true)
	f.Add([]byte(`{"op":"release","instance":"they","seq":9223372036854775808,"reason":"crashed"}`), true)
	f.Add([]byte(`{"op":"hold","instance":"me","takeOver":true,"presence":{"state":"offline","reason":"\u2028"}}`), false)
	now := time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, body []byte, held bool) {
		var req leaseRequest
		if json.Unmarshal(body, &req) != nil || req.check() != nil {
			return
		}
		current := &lease{Instance: "they", Acquired: now, Seq: 99, Since: now, Released: !held, Presence: Presence{State: Online}}
		next, answer := decide(current, time.Time{}, 7, req, now)
		if answer.Result == "" {
			t.Error("decide returns an answer without a result")
		}
		if next == nil {
			return
		}
		if next.Instance != req.Instance || held && next.Instance != "they" && !req.TakeOver {
			t.Errorf("the request %+v made the lease %+v; want the requester's name only where it may take the host", req, next)
		}
		data, err := json.Marshal(next)
		if err != nil || len(data) > 2*maxLeaseBody {
			t.Errorf("the lease takes %d bytes, %v; want at most %d", len(data), err, 2*maxLeaseBody)
		}
	})
}

// TestAsleepLastsUntilHeard describes hosts whose host-agent has announced sleep. The host must
// stay asleep while the host-agent is silent. After a release, the host must be offline.
func TestAsleepLastsUntilHeard(t *testing.T) {
	since := time.Date(2026, 1, 2, 14, 2, 0, 0, time.UTC)
	asleep := Presence{State: Asleep, Reason: "sleeps", Wire: [2]int{link.WireMin, link.WireMax}}
	for name, c := range map[string]struct {
		lease lease
		alive bool
		want  State
	}{
		"announced": {lease{Instance: "i", Since: since, Presence: asleep}, true, Asleep},
		"silent":    {lease{Instance: "i", Since: since, Presence: asleep}, false, Asleep},
		"stopped":   {lease{Instance: "i", Since: since, Presence: asleep, Released: true}, false, Offline},
		"lost":      {lease{Instance: "i", Since: since, Presence: Presence{State: Online}}, false, Offline},
	} {
		h := (&knownHost{hostState: hostState{Key: "t.h", Lease: &c.lease}}).describe("1", c.alive, time.Time{})
		if h.State != c.want || c.want == Asleep && (!h.Since.Equal(since) || h.Reason != "sleeps") {
			t.Errorf("%s: %s since %v, %q; want %s", name, h.State, h.Since, h.Reason, c.want)
		}
	}
}
