package hostagent

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/hostagent/remembering"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// Bounds of links to sessions of sealed hosts.
const (
	defaultLinkLife   = time.Hour
	maxLinkLife       = 7 * 24 * time.Hour
	defaultLinkPeople = 64
	maxLinkPeople     = 1000
	maxLinks          = maxDevices / 2 // most links that are valid at the same time
)

// SealedLink is a new link to one session of a sealed host. The link contains the keys of
// a device, which all viewers of the link use.
type SealedLink struct {
	ID      string    `json:"id"` // the fingerprint of the link's device, as "host-agent devices" shows it
	Host    string    `json:"host"`
	HostKey string    `json:"hostKey"` // the host's public key in base64url
	Keys    string    `json:"keys"`    // the keys of the link's device, in the form of sealed.LinkKeys
	Console string    `json:"console,omitempty"`
	Expires time.Time `json:"expires"`
}

// link returns the device for a new link. Each invalid field has its branch with its
// error.
func (o *DeviceOrder) link(now time.Time) (vaultDevice, error) {
	level, people := cmp.Or(o.Level, auth.AccessRead), cmp.Or(o.People, defaultLinkPeople)
	life := cmp.Or(time.Duration(o.Seconds)*time.Second, defaultLinkLife)
	switch {
	case !strings.Contains(o.Session, ":") || strings.Contains(o.Session, "*"):
		return vaultDevice{}, errors.New("want the URI of one session")
	case !slices.Contains(auth.Levels(), level) || level.Includes(auth.AccessAdmin):
		return vaultDevice{}, errors.New("a link has the level look, talk, approve or operate")
	case life < 0 || life > maxLinkLife:
		return vaultDevice{}, fmt.Errorf("a link is valid for at most %v", maxLinkLife)
	case people < 0 || people > maxLinkPeople:
		return vaultDevice{}, fmt.Errorf("a link is for 1 to %d people", maxLinkPeople)
	}
	now = now.UTC()
	return vaultDevice{Name: "link", Level: level, Channels: []string{o.Session}, Since: now, Seen: now, End: now.Add(life), People: people}, auth.CheckPatterns("session", []string{o.Session})
}

// newLinkDevice returns a device for a link. Its fingerprint, which is the link's ID, does not begin
// with a hyphen: "host-agent unshare" would read such an ID as flags.
func newLinkDevice() (d *sealed.Device, err error) {
	for d, err = sealed.NewDevice(); err == nil && strings.HasPrefix(d.Identity().Fingerprint().String(), "-"); {
		d, err = sealed.NewDevice()
	}
	return d, err
}

// makeLink makes a link durably, if the host shows the session.
func (s *seals) makeLink(ctx context.Context, order DeviceOrder) (SealedLink, error) {
	now := time.Now()
	made, err := order.link(now)
	if err != nil {
		return SealedLink{}, err
	}
	if namesHidden(s.agent.known, s.agent.policy(routing.Open{Access: string(made.Level), Channels: made.Channels})) {
		return SealedLink{}, fmt.Errorf("%s: %s", order.Session, privateReason)
	}
	if err := remembering.Shows(ctx, s.agent.last.dial, order.Session); err != nil {
		return SealedLink{}, fmt.Errorf("%s: the host does not show this session: %w", order.Session, err)
	}
	device, err := newLinkDevice()
	if err != nil {
		return SealedLink{}, err
	}
	keys, err := sealed.LinkKeys(device)
	if err != nil {
		return SealedLink{}, err
	}
	is := device.Identity()
	id := is.Fingerprint().String()
	made.Key, made.Verifier, made.Subject = is.Key[:], is.Verifier[:], linkSubject(is.Fingerprint())
	if err := s.keepLink(made, now); err != nil {
		return SealedLink{}, err
	}
	s.agent.cfg.Log.Info(auditMessage, "event", "link made", "device", id, "access", made.Level, "until", made.End)
	host := s.secret.Public()
	return SealedLink{id, s.agent.host, base64.RawURLEncoding.EncodeToString(host[:]), keys, s.agent.cfg.Sealed.Console, made.End}, nil
}

func linkSubject(device sealed.Fingerprint) string { return "link-" + device.String()[:10] }

// keepLink stores the device of a new link, and removes expired links.
func (v *vault) keepLink(made vaultDevice, now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	links := 0
	devices := slices.DeleteFunc(slices.Clone(v.state.Devices), func(d vaultDevice) bool {
		over := d.People > 0 && !now.Before(d.End)
		if d.People > 0 && !over {
			links++
		}
		return over
	})
	if links >= maxLinks || len(devices) >= maxDevices {
		return fmt.Errorf("this host has %d links, and %d devices including links; want fewer than %d and %d: end links, or remove devices", links, len(devices), maxLinks, maxDevices)
	}
	return v.changeLocked(func(s *vaultState) { s.Devices = append(devices, made) })
}

// errCrowded reports a link with the most viewers that it permits.
var errCrowded = errors.New("this link has as many viewers as it permits")

// enter counts a new connection of a link's device, and gives each viewer its own subject.
// It returns false if the device is not a link's.
func (v *vault) enter(a *sealed.Authority, viewer string) (link bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	holder := a.Chain[0]
	d := v.deviceLocked(holder)
	if d == nil || d.People == 0 {
		return false, nil
	}
	if v.here[holder] >= d.People {
		return false, errCrowded
	}
	v.here[holder]++
	if viewer != "" {
		a.Subject += "-" + sealed.ViewerName(viewer)
	}
	return true, nil
}

// exit subtracts an ended connection from its link's count.
func (v *vault) exit(a *sealed.Authority) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.here[a.Chain[0]]--; v.here[a.Chain[0]] == 0 {
		delete(v.here, a.Chain[0])
	}
}
