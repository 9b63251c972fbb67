package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/clock"
	"ahprelay/internal/connect"
	"ahprelay/internal/dialhint"
)

type loginCmd struct {
	URL        string `arg:"" help:"The relay's base URL, or an invitation link, which needs no approval." placeholder:"URL"`
	Name       string `help:"This device's name in lists. Default: ahp-connect, and the machine's name." placeholder:"NAME"`
	RelayPlain bool   `help:"Allow http:// to other machines, in private networks only."`
	NoQR       bool   `help:"Print no QR code." name:"no-qr"`
}

// Run makes this machine a device. An invitation link suffices; otherwise a signed-in
// person must approve.
func (c *loginCmd) Run(ctx context.Context, s *streams) error {
	base, _, _ := strings.Cut(c.URL, "/setup#") // behind it, an invitation link has its secret
	if err := connect.CheckURL(base, c.RelayPlain); err != nil {
		return err
	}
	if err := s.home.Writable(); err != nil {
		return err
	}
	machine, _ := os.Hostname() // an unknown name is not shown
	login := device.Login{Relay: c.URL, Name: c.Name, Machine: machine, Plain: c.RelayPlain, Show: func(code device.Code) {
		cli.ShowCode(s.err, code, "Add a device", c.NoQR)
	}}
	login.Name = cmp.Or(login.Name, strings.TrimSpace("ahp-connect "+machine))
	if who, err := user.Current(); err == nil {
		login.User = who.Username
	}
	d, err := login.Run(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", base, dialhint.Error(base, err))
	}
	inStore, why, err := s.home.Save(d)
	if err != nil {
		return err
	}
	place := "a file that only you can read"
	if inStore {
		place = "the system's key store"
	} else if why != nil {
		place += fmt.Sprintf(" (no key store: %v)", why)
	}
	_, err = fmt.Fprintf(s.err, "Signed in at %s as %s. The key is in %s.\n", connect.RelayName(d.Relay), cli.Printable(d.Subject), place)
	return err
}

// atFlag selects a sign-in.
type atFlag struct {
	At string `help:"The relay, by name or URL, if you are signed in at several." placeholder:"RELAY"`
}

type logoutCmd struct{ atFlag }

// Run signs the device out, at the relay and here.
func (c *logoutCmd) Run(ctx context.Context, s *streams) error {
	d, err := s.home.Device(c.At)
	if err != nil {
		return err
	}
	err = d.Call(ctx, http.MethodDelete, "/api/devices/"+url.PathEscape(d.ID), nil, nil)
	var refused *device.Refused
	if err != nil && (!errors.As(err, &refused) || refused.Name != "invalid_grant") { // invalid_grant: the device was removed before
		return fmt.Errorf("%w; the device remains: remove it on /device of the relay, then run ahp-connect logout again", err)
	}
	if err := s.home.Remove(d); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "Signed out. This device's tokens are revoked.\n")
	return err
}

type accessCmd struct {
	atFlag
	Host    []string      `help:"Hosts, as patterns. Default: all hosts that you may reach." placeholder:"HOST"`
	Channel []string      `help:"Channels, as patterns. Default: all channels that you may reach." placeholder:"URI"`
	Level   auth.Access   `help:"The token's level, at most your own: look, talk, approve, operate or own. Default: your own, at most operate." enum:"look,talk,approve,operate,own,read,write,admin," default:""`
	TTL     time.Duration `help:"The token's lifetime, at most 720h, and at most until your sign-in ends; --keep renews it after half of its time." default:"1h" least:"1s" most:"720h" name:"ttl"`
	Keep    string        `help:"Instead of printing a token, keep a valid token in this file until stopped, for clients that read the file at each connection." type:"path" placeholder:"FILE"`
}

// Run prints a token for a client that cannot prove a key, or keeps one in a file.
func (c *accessCmd) Run(ctx context.Context, s *streams) error {
	d, err := s.home.Device(c.At)
	if err != nil {
		return err
	}
	token, err := c.token(ctx, d)
	if err != nil {
		return err
	}
	if c.Keep == "" {
		_, err := fmt.Fprintln(s.out, token)
		return err
	}
	for {
		if err := atomicfile.Replace(c.Keep, []byte(token+"\n"), 0o600); err != nil {
			return fmt.Errorf("--keep %s: %w", c.Keep, err)
		}
		if token, err = c.renewed(ctx, s, d, c.pause(token)); err != nil {
			return err
		}
		if token == "" {
			return nil
		}
	}
}

// retryToken is the pause before another attempt after a failure other than a refusal.
const retryToken = 10 * time.Second

// pause returns half of a token's lifetime, which ends with the person's sign-in. Towards that
// end, the pause does not become shorter than retryToken.
func (c *accessCmd) pause(token string) time.Duration {
	return max(cmp.Or(connect.Lifetime(token), c.TTL)/2, min(c.TTL/2, retryToken))
}

// renewed returns a new token after a wait, and "" when ctx ends. It retries while the relay is unreachable, faulty or busy (429). A refusal is an error.
func (c *accessCmd) renewed(ctx context.Context, s *streams, d *device.Device, wait time.Duration) (string, error) {
	for {
		if !passes(ctx, time.Now().Add(wait), time.Now) {
			return "", nil
		}
		token, err := c.token(ctx, d)
		var refused *device.Refused
		switch {
		case err == nil:
			s.log.Info("token renewed", "file", c.Keep)
			return token, nil
		case ctx.Err() != nil:
			return "", nil
		case errors.As(err, &refused) && refused.Status < http.StatusInternalServerError && refused.Status != http.StatusTooManyRequests:
			return "", err
		}
		s.log.Warn("token not renewed", "effect", "trying again", "error", err)
		wait = retryToken
	}
}

// passes waits for a wall time, and returns false when ctx ends before. It looks at the wall time every retryToken, because a
// timer stops while the machine sleeps, and tokens end nevertheless.
func passes(ctx context.Context, until time.Time, wall func() time.Time) bool {
	for {
		left := until.Round(0).Sub(wall().Round(0))
		if left <= 0 {
			return true
		}
		if !clock.Sleep(ctx, min(left, retryToken)) {
			return false
		}
	}
}

func (c *accessCmd) token(ctx context.Context, d *device.Device) (string, error) {
	var made struct{ Token string }
	err := d.Call(ctx, http.MethodPost, "/api/tokens", map[string]any{
		"level": c.Level, "hosts": c.Host, "channels": c.Channel, "seconds": int(c.TTL.Seconds()),
	}, &made)
	return made.Token, err
}
