package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/auth"
	"ahprelay/notify"
	"ahprelay/people"
)

// Files in the data directory.
const (
	waysName    = "notify.json"     // what people have set
	queueName   = "notify.queue"    // what is to be told
	pushKeyName = "notify-key.json" // the relay's for push services
)

// NotifyConfig says how people are told while they look at nothing.
type NotifyConfig struct {
	Contact string             // of the operator, for push services: an address of mail, or https://…; default: the relay's public URL
	Mail    *notify.MailConfig // default: none is sent
	Private []netip.Prefix     // addresses that are not public, and may be ways all the same
}

// startNotify has people told of what is on the server's board, and the board hear
// host-agents.
func (r *Relay) startNotify(cfg *RelayConfig, server *Server) (err error) {
	if cfg.Notify.Mail != nil {
		if err := cfg.Notify.Mail.Check(); err != nil {
			return err
		}
	}
	key, err := loadPushKey(filepath.Join(cfg.DataDir, pushKeyName))
	if err != nil {
		return err
	}
	store, err := people.OpenFileStore(filepath.Join(cfg.DataDir, waysName))
	if err != nil {
		return err
	}
	if r.queue, err = notify.OpenQueue(filepath.Join(cfg.DataDir, queueName)); err != nil {
		return err
	}
	public := strings.TrimSuffix(cfg.Gateway.PublicURL, "/")
	if r.teller, err = notify.StartTeller(notify.TellerConfig{
		Board: server.board, Store: store, Queue: r.queue, Log: r.log, Standing: server.standing, Capability: server.capability,
		PublicURL: public, Contact: cmp.Or(cfg.Notify.Contact, public, "relay@localhost"), Push: key, Mail: cfg.Notify.Mail, Private: cfg.Notify.Private,
	}); err != nil {
		return err
	}
	server.teller = r.teller
	r.desk = notify.StartDesk(notify.DeskConfig{
		Board: server.board, Tenants: r.tenants, Registry: r.registry, Log: r.log, Keep: r.teller.Keep,
		Instance: cfg.Gateway.Instance,
		Sign:     func(body []byte) (key, signature []byte) { return r.keys.Sign(auth.AnswerRequest, body) },
	})
	server.answer = r.desk.Answer
	return nil
}

// loadPushKey reads the relay's key for push services, or makes one. Browsers have
// subscribed to it: another one would be told of nothing.
func loadPushKey(path string) (*notify.PushKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := notify.NewPushKey()
		if err != nil {
			return nil, err
		}
		if data, err = json.Marshal(key); err != nil {
			return nil, err
		}
		return key, auth.ReplaceFile(path, data, 0o600)
	}
	key := &notify.PushKey{}
	if err == nil {
		err = json.Unmarshal(data, key)
	}
	if err == nil && (key.Public == "" || key.Private == "") {
		err = errors.New("no key in it")
	}
	if err != nil {
		return nil, fmt.Errorf("key for push services: %s: %w", path, err)
	}
	return key, nil
}

// stopNotify ends all that startNotify has begun.
func (r *Relay) stopNotify() {
	if r.desk != nil {
		r.desk.Close()
	}
	if r.teller != nil {
		r.teller.Close()
	}
	if r.queue != nil {
		if err := r.queue.Close(); err != nil {
			r.log.Error("events to be told", "error", err)
		}
	}
}
