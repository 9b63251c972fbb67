//go:build !race

package browser_test

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/faultproxy"
)

// wakingVariable has the absences to measure, such as 5s,1m,5m (make waking).
const wakingVariable = "AHP_WAKING"

// A waker is a page that loses its network and gets it back.
type waker struct {
	*page
	network *faultproxy.Proxy
	took    []time.Duration // from the return of the network until everything is shown
}

// TestWakingPhone measures how soon a phone's page shows what it has missed, once its
// network is back: with AHP's reconnect at the relay, and with a resumed stream behind
// ahp-connect. Meanwhile the host sends 15 actions a second. The network returns with the
// old connections ("frozen"), or without them ("new address"). Both pages are measured at
// once.
func TestWakingPhone(t *testing.T) {
	absences := os.Getenv(wakingVariable)
	if absences == "" {
		t.Skipf("%s is not set: waking phones are not measured (make waking)", wakingVariable)
	}
	for text := range strings.SplitSeq(absences, ",") {
		away, err := time.ParseDuration(text)
		must(t, err)
		for _, kept := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, connections kept %v", away, kept), func(t *testing.T) {
				t.Parallel()
				measureWaking(t, away, kept)
			})
		}
	}
}

func measureWaking(t *testing.T, away time.Duration, kept bool) {
	s := startStackWith(t, stackConfig{still: true})
	names := []string{"reconnect", "stream"}
	wakers := map[string]*waker{}
	for _, name := range names {
		network, err := faultproxy.New("", s.url[len("http://"):])
		must(t, err)
		t.Cleanup(network.Close)
		w := &waker{page: newPage(t), network: network}
		wakers[name] = w
		at := "http://" + network.Addr() + "/#" + url.Values{"token": {s.token(time.Hour)}}.Encode()
		if name == "stream" {
			at = s.behindConnect(network.Addr())
		}
		w.do(phone(), chromedp.Navigate(at))
		w.wants("#status-text", "Live")
		w.openSession("demo:/login")
		w.wants("#turns", "Done. 500 runs")
	}
	actor := newPage(t)
	actor.do(phone(), chromedp.Navigate(s.url+"/#"+url.Values{"token": {s.token(time.Hour)}}.Encode()))
	actor.openSession("demo:/login")
	actor.wants("#turns", "Done. 500 runs")
	rounds := max(1, min(10, int(time.Minute/away)))
	for round := range rounds {
		n := int(away/(66*time.Millisecond)) - 15 + round // a different end in each round
		last := fmt.Sprintf("%d x", n-1)
		actor.say(fmt.Sprintf("stream %d 66 8", n))
		for _, w := range wakers {
			w.wants("#turns", "3 xxxxxx")
			eval[bool](w.page, fmt.Sprintf(`(() => {
				window.caught = 0;
				const look = () => {
					if (!document.querySelector('#turns').textContent.includes(%s) || document.querySelector('#stop') || document.querySelector('#status-text').textContent !== 'Live') return;
					window.caught = Date.now();
					seen.disconnect();
				};
				const seen = new MutationObserver(look);
				seen.observe(document.body, {subtree: true, childList: true, characterData: true});
				return true;
			})()`, js(last)))
		}
		for _, w := range wakers {
			w.network.Freeze()
		}
		time.Sleep(away)
		actor.until("the end of the turn", away+2*time.Minute, func() bool { // a busy machine's host is slower
			return eval[bool](actor, fmt.Sprintf("document.querySelector('#turns').textContent.includes(%s) && !document.querySelector('#stop')", js(last)))
		})
		for _, name := range names {
			w := wakers[name]
			if !kept {
				w.network.Cut()
			}
			back := time.Now()
			must(t, w.network.Heal())
			eval[bool](w.page, "dispatchEvent(new Event('online'))") // as a phone's browser does
			w.until("the page to show everything", 2*time.Minute, func() bool { return eval[float64](w.page, "window.caught") > 0 })
			w.took = append(w.took, time.UnixMilli(int64(eval[float64](w.page, "window.caught"))).Sub(back).Round(time.Millisecond))
		}
		slices.Reverse(names) // neither is always first
	}
	for name, w := range wakers {
		slices.Sort(w.took)
		t.Logf("%-9s median %v of %v", name, w.took[len(w.took)/2], w.took)
	}
}
