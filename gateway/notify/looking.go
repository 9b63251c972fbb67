package notify

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
)

// lookingSubject is the NATS subject, in the account that relays share, on which relays
// tell each other which people have a visible page. A lost message does no harm, because
// the page repeats its report.
const lookingSubject = "ahp.relays.v1.looking"

// lookingRoom is the number of queued messages from other relays.
const lookingRoom = 1024

type looking struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
}

// Looking records that a person has a visible page of the console.
func (n *Notifier) Looking(tenant, subject string) {
	n.noteLooking(tenant, subject)
	if n.cfg.Bus != nil {
		body, _ := json.Marshal(looking{tenant, subject}) // all fields can be encoded
		_ = n.cfg.Bus.Publish(lookingSubject, body)       // if it is lost, the page repeats its report
	}
}

func (n *Notifier) applyLooking(msg *nats.Msg) {
	var l looking
	if json.Unmarshal(msg.Data, &l) == nil {
		n.noteLooking(l.Tenant, l.Subject)
	}
}

func (n *Notifier) noteLooking(tenant, subject string) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.looking, func(_ [2]string, until time.Time) bool { return until.Before(now) })
	n.looking[[2]string{tenant, subject}] = now.Add(lookingFor)
}
