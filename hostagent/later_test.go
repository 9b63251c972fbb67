package hostagent

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// full is a relay that refuses each request because the tenant's limit is reached. It counts the
// requests.
type full struct{ asked int }

// RoundTrip implements [http.RoundTripper].
func (f *full) RoundTrip(r *http.Request) (*http.Response, error) {
	f.asked++
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"10"}}, Request: r,
		Body: io.NopCloser(strings.NewReader("limit of 2 connected host-agents of this tenant (--limit-hosts) reached")),
	}, nil
}

// TestHostAgentBacksOffBeyondLimit has a relay that refuses a host-agent because its tenant's limit
// is reached. The host-agent must request credentials less and less often, even if its connection
// asks each second, and its error must name the limit.
func TestHostAgentBacksOffBeyondLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, relay := enrolled(t, newKeyRelay(t)), &full{}
		a.http = &http.Client{Transport: relay}
		var asked [3]int
		for i := range asked {
			for range 600 {
				_, err := a.credentials(t.Context())
				if err == nil || !strings.Contains(err.Error(), "--limit-hosts") || !temporary(err) {
					t.Fatalf("credentials: %v; want the limit's name", err)
				}
				time.Sleep(time.Second)
			}
			asked[i], relay.asked = relay.asked, 0
		}
		if asked[0] > 8 || asked[2] == 0 || asked[2] > 4 {
			t.Errorf("in three periods of ten minutes, the host-agent made %v requests; want at most 8 in the first, and 1 to 4 in the last", asked)
		}
	})
}

// TestGrantedRequestEndsPauses refuses 20 requests and grants another request. The pauses must end
// then. After the next refusal, the pause must be as short as after the first refusal.
func TestGrantedRequestEndsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pausing
		refusal := &limitError{error: errors.New("full"), after: 10 * time.Second}
		for range 20 {
			p.refused(refusal)
		}
		if time.Sleep(maxLater / 2); p.err() == nil && time.Until(p.until) > maxLater {
			t.Errorf("a pause takes %v; want at most maxLater", time.Until(p.until))
		}
		p.granted()
		if err := p.err(); err != nil {
			t.Errorf("after a granted request: %v; want no error", err)
		}
		for range 20 {
			p.granted()
			p.refused(refusal)
			if time.Sleep(10*time.Second - 1); p.err() == nil {
				t.Error("the first pause is shorter than the relay demanded; want 10 s")
			}
			if time.Sleep(time.Nanosecond); p.err() != nil {
				t.Errorf("after the first pause: %v; want no error", p.err())
			}
		}
	})
}

// busyRelays answers each request at a relay with 503. A relay demands a pause of its own.
type busyRelays struct {
	pauses map[string]string // in seconds, by the relay's host
	asked  []string          // relays in the order of requests
}

// RoundTrip implements [http.RoundTripper].
func (b *busyRelays) RoundTrip(r *http.Request) (*http.Response, error) {
	b.asked = append(b.asked, r.URL.Host)
	return &http.Response{
		StatusCode: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {b.pauses[r.URL.Host]}}, Request: r,
		Body: io.NopCloser(strings.NewReader("many host-agents arrive at this relay")),
	}, nil
}

// TestTwoBusyRelaysAreEnough has a cluster of four relays that are busy with other host-agents. The
// host-agent must ask only two of them, because each refusal delays the relays further, and must
// pause for the shorter of their pauses.
func TestTwoBusyRelaysAreEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := enrolled(t, newKeyRelay(t))
		cluster := &busyRelays{pauses: map[string]string{"one": "100", "two": "40", "three": "100", "four": "100"}}
		a.http = &http.Client{Transport: cluster}
		a.relays = newRelays([]string{"http://one", "http://two", "http://three", "http://four"}, "acme", "laptop")
		if _, err := a.credentials(t.Context()); err == nil {
			t.Fatal("credentials from busy relays")
		}
		if len(cluster.asked) != 2 {
			t.Fatalf("the host-agent asked %v; want two relays", cluster.asked)
		}
		want := 100 * time.Second
		if slices.Contains(cluster.asked, "two") {
			want = 40 * time.Second
		}
		if pause := time.Until(a.pausing.until); pause > want || pause < want-time.Second {
			t.Errorf("the host-agent pauses for %v after refusals by the relays %v; want about %v", pause, cluster.asked, want)
		}
	})
}
