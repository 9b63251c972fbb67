package link_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/broker/link"
)

func TestHighestCommonWireIsChosen(t *testing.T) {
	for _, test := range []struct {
		peer [2]int
		want byte
		text string // text that the error contains; "": no error
	}{
		{[2]int{2, 2}, 2, ""},
		{[2]int{2, 9}, 2, ""},
		{[2]int{0, 2}, 2, ""},
		{[2]int{1, 1}, 0, "upgrade the relay 0.9.0"},
		{[2]int{3, 9}, 0, "upgrade the host-agent 0.3.0"},
		{[2]int{0, 0}, 0, "upgrade the relay 0.9.0"},
		{[2]int{-5, -1}, 0, "upgrade the relay 0.9.0"},
		{[2]int{257, 257}, 0, "upgrade the host-agent 0.3.0"},
		// An empty range, which no peer sends.
		{[2]int{3, 1}, 0, "upgrade"},
	} {
		got, err := link.CommonWire(test.peer, "relay", "0.9.0", "host-agent", "0.3.0")
		switch {
		case test.text == "" && (err != nil || got != test.want):
			t.Errorf("CommonWire(%v) = %d, %v; want %d", test.peer, got, err, test.want)
		case test.text != "" && (!errors.Is(err, link.ErrIncompatible) || !strings.Contains(err.Error(), test.text)):
			t.Errorf("CommonWire(%v) = %d, %v; want %q", test.peer, got, err, test.text)
		}
	}
}

// TestRefusedRelayLearnsWhy changes a relay's hello so that no link is possible. The host-agent
// must answer with the reason, and the relay's Run return it.
func TestRefusedRelayLearnsWhy(t *testing.T) {
	for _, test := range []struct {
		name   string
		change string // text in the relay's hello that is replaced by to
		to     string
		cause  error
		want   string
	}{
		{"newer", `"wire":[2,2]`, `"wire":[3,4]`, link.ErrIncompatible, "no common wire version: relay test speaks 3 to 4, host-agent test speaks 2 to 2; upgrade the host-agent test"},
		{"older", `"wire":[2,2]`, `"wire":[0,0]`, link.ErrIncompatible, "upgrade the relay test"},
		{"no credit", `"credit":1`, `"credit":0`, link.ErrRefused, "credit of 0"},
		{"negative credit", `"credit":1`, `"credit":-5`, link.ErrRefused, "credit of -5"},
		{"no frames", `"maxFrame":1`, `"maxFrame":0`, link.ErrRefused, "frames of 0 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t, link.Config{})
				defer e.close()
				e.net.intercept(func(subject string, data []byte) ([]byte, error) {
					if strings.HasSuffix(subject, ".down") {
						data = link.AppendSum([]byte(strings.Replace(string(data[:len(data)-4]), test.change, test.to, 1)))
					}
					return data, nil
				})
				r := e.start("relay1", testHello)
				select {
				case err := <-r.result:
					if !errors.Is(err, test.cause) || !strings.Contains(err.Error(), test.want) ||
						strings.Count(err.Error(), link.ErrIncompatible.Error())+strings.Count(err.Error(), link.ErrRefused.Error()) != 1 {
						t.Errorf("Run = %v; want %v: %s", err, test.cause, test.want)
					}
				case <-time.After(time.Second):
					t.Error("Run of the refused relay has not returned after a second; want its error")
				}
				if len(e.accepted) != 0 {
					t.Error("the host-agent accepted the link; want a refusal")
				}
			})
		})
	}
}

// TestUselessWelcomeIsRefused answers a relay's hello with invalid answers. Run must return an
// error. Answers that do not belong to the hello must be ignored.
func TestUselessWelcomeIsRefused(t *testing.T) {
	for _, test := range []struct {
		answer string
		want   error
	}{
		{"\x00\x02" + `{"epoch":%,"wire":[2,2],"credit":0,"maxFrame":1}`, link.ErrBadPacket},
		{"\x00\x02" + `{"epoch":%,"wire":[2,2],"credit":5,"maxFrame":-1}`, link.ErrBadPacket},
		{"\x00\x02" + `{"epoch":%,"wire":[3,3],"credit":5,"maxFrame":1}`, link.ErrIncompatible},
		{"\x00\x03" + `{"epoch":%,"reason":"no common wire version: upgrade the relay"}`, link.ErrIncompatible},
		{"\x00\x03" + `{"epoch":%,"reason":"too busy"}`, link.ErrRefused},
		// The relay ignores these answers: they have no valid epoch, kind or content.
		{"\x00\x02" + `{"epoch":0,"wire":[2,2],"credit":5,"maxFrame":1}`, link.ErrSilent},
		{"\x00\x02" + `{"epoch":%,"wire":[2,2],"credit":1e99}`, link.ErrSilent},
		{"\x00\x07" + `{"epoch":%}`, link.ErrSilent},
		{"\x00\x02", link.ErrSilent},
		{"\x01\x01\x01", link.ErrSilent},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, link.Config{})
			e.stop() // this test answers in place of the host-agent
			e.wg.Wait()
			e = &ends{t: t, net: e.net, life: t.Context()}
			e.net.intercept(func(subject string, data []byte) ([]byte, error) {
				if !strings.HasSuffix(subject, ".down") {
					return data, nil
				}
				_, epoch, _ := strings.Cut(string(data), `"epoch":`)
				epoch, _, _ = strings.Cut(epoch, ",")
				up := strings.TrimSuffix(subject, "down") + "up"
				return nil, e.net.Publish(up, link.AppendSum([]byte(strings.Replace(test.answer, "%", epoch, 1))))
			})
			r := e.start("relay1", testHello)
			if err := <-r.result; !errors.Is(err, test.want) {
				t.Errorf("answer %q: Run = %v; want %v", test.answer, err, test.want)
			}
			e.wg.Wait()
		})
	}
}
