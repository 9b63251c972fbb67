package hostagent

import (
	"errors"
	"io"
	"net/http"
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
			t.Errorf("%v requests, each in ten minutes; want fewer and fewer, but some", asked)
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
		p.refused(refusal)
		if time.Sleep(10 * time.Second); p.err() != nil {
			t.Errorf("after the first pause: %v; want no error", p.err())
		}
	})
}
