package notify

import (
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
)

// lookingSubject is where relays tell each other who looks, in their own account: the page
// may be another's than the relay that would tell. What is lost comes again.
const lookingSubject = "ahp.relays.v1.looking"

// looksRoom is for words of other relays that are not yet looked at.
const looksRoom = 1024

type looking struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
}

// Looking notes that somebody has a page of the relay before their eyes.
func (t *Teller) Looking(tenant, subject string) {
	t.noteLooking(tenant, subject)
	if t.cfg.Bus != nil {
		body, _ := json.Marshal(looking{tenant, subject}) // no field can fail
		_ = t.cfg.Bus.Publish(lookingSubject, body)       // who looks says so again
	}
}

func (t *Teller) hearLooking(msg *nats.Msg) {
	var l looking
	if json.Unmarshal(msg.Data, &l) == nil {
		t.noteLooking(l.Tenant, l.Subject)
	}
}

func (t *Teller) noteLooking(tenant, subject string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, until := range t.looks {
		if until.Before(now) {
			delete(t.looks, key)
		}
	}
	t.looks[[2]string{tenant, subject}] = now.Add(lookingFor)
}
