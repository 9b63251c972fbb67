package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
	"ahprelay/internal/sealed"
)

// shareFlags select a host on this machine, and a relay.
type shareFlags struct {
	Relay           []string `help:"The relay's base URL. Default: the relay that issued the credential." placeholder:"URL"`
	TokenFile       string   `help:"File with the enrolment token, as for host-agent run." xor:"token" type:"path" placeholder:"FILE"`
	CredentialsFile string   `help:"Credential file, as for host-agent run. Default: the file written by host-agent up, if there is only one." xor:"token" type:"path" placeholder:"FILE"`
	Control         string   `help:"The running host-agent's control socket, if it was started with --control: a sealed host makes its links itself." placeholder:"PATH"`
	plainFlag
}

// sealed returns the running host-agent's control socket and the devices of its host. is
// reports whether a host-agent runs and its host is sealed.
func (f *shareFlags) sealed(ctx context.Context, sharing *hostagent.Sharing) (control hostagent.Control, devices []hostagent.DeviceInfo, is bool) {
	control.Path = f.Control
	if control.Path == "" {
		token, err := sharing.Token()
		if err != nil {
			return control, nil, false
		}
		tenant, host, err := auth.PeekHost(token)
		if err != nil {
			return control, nil, false
		}
		if control.Path, err = hostagent.ControlPath(sharing.Credentials, sharing.Relays, tenant, host); err != nil {
			return control, nil, false
		}
	}
	list, err := control.Devices(ctx)
	return control, list.Devices, err == nil
}

// sharing returns access to the relay's links.
func (f *shareFlags) sharing() (*hostagent.Sharing, error) {
	s := &hostagent.Sharing{Relays: f.Relay, Plain: f.RelayPlain}
	if f.TokenFile != "" {
		from := hostFlags{TokenFile: f.TokenFile}
		s.Token = from.token
	} else {
		file, err := f.credentials()
		if err != nil {
			return nil, err
		}
		if s.Credentials, err = hostagent.OpenCredentialFile(file); err != nil {
			return nil, err
		}
		s.Token = s.Credentials.Token
		if relay := s.Credentials.Relay(); len(s.Relays) == 0 && relay != "" {
			s.Relays = []string{relay}
		}
	}
	if len(s.Relays) == 0 {
		return nil, errors.New("no relay known: give --relay")
	}
	return s, nil
}

func (f *shareFlags) credentials() (string, error) {
	if f.CredentialsFile != "" {
		return f.CredentialsFile, nil
	}
	dir, err := stateHome()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.credential"))
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", fmt.Errorf("no credential in %s: give --credentials-file or --token-file, or run host-agent up first: %w", dir, fs.ErrNotExist)
	case len(found) > 1:
		return "", fmt.Errorf("several credentials in %s: choose one with --credentials-file", dir)
	}
	return found[0], nil
}

type shareCmd struct {
	Session string        `arg:"" help:"Session URI, such as ahp-session:/…, or the console's address while the session is open." placeholder:"SESSION"`
	Level   auth.Access   `help:"Level for the link's holders: look, talk, approve or operate; never above --allow of the running host-agent." enum:"look,talk,approve,operate,read,write" default:"look"`
	TTL     time.Duration `help:"The link's lifetime, at most 168h." default:"1h" least:"1s" most:"168h" name:"ttl"`
	People  int           `help:"Concurrent connections allowed for the link at each relay." default:"64" placeholder:"N"`
	Files   bool          `help:"Include files in the session's working directories."`
	NoQR    bool          `help:"Print no QR code." name:"no-qr"`
	shareFlags
}

func (c *shareCmd) Run(ctx context.Context, s *streams) error {
	sharing, err := c.sharing()
	if err != nil {
		return err
	}
	session := c.Session
	if _, fragment, ok := strings.Cut(session, "#"); ok {
		if params, err := url.ParseQuery(fragment); err == nil && params.Get("session") != "" {
			session = params.Get("session")
		}
	}
	link, err := c.make(ctx, sharing, session)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.out, cli.Printable(link.Link)); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "Valid until %s. List its viewers: host-agent shares. Revoke it: host-agent unshare %s\n", link.Expires.Local().Format(time.DateTime), printable(link.ID))
	if c.NoQR {
		return nil
	}
	return cli.PrintQR(os.Stdout, s.err, link.Link)
}

// make makes a link. It tries the link, except at a sealed host.
func (c *shareCmd) make(ctx context.Context, sharing *hostagent.Sharing, session string) (hostagent.Link, error) {
	if control, _, is := c.sealed(ctx, sharing); is {
		return c.makeSealed(ctx, sharing, control, session)
	}
	link, err := sharing.Share(ctx, hostagent.ShareAsk{Session: session, Level: c.Level, TTL: c.TTL, People: c.People, Files: c.Files})
	if err != nil {
		return link, err
	}
	return link, tried(ctx, sharing, link, session)
}

// sealedScheme begins the name of a sealed host's link at its relay, which does not learn
// the session.
const sealedScheme = "sealed:/"

// makeSealed makes a link to a session of a sealed host. The host decides who sees the
// session; the relay's own link only admits viewers to the relay.
func (c *shareCmd) makeSealed(ctx context.Context, sharing *hostagent.Sharing, control hostagent.Control, session string) (link hostagent.Link, err error) {
	if c.Files {
		return link, errors.New("a link to a sealed host does not include files: leave --files out")
	}
	made, err := control.Link(ctx, hostagent.DeviceOrder{Session: session, Level: c.Level, Seconds: int(c.TTL.Seconds()), People: c.People})
	if err != nil {
		return link, err
	}
	defer func() {
		if err != nil {
			ctx, cancel := afterEnd(ctx)
			defer cancel()
			_, ended := control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "remove", Device: made.ID})
			err = errors.Join(err, ended)
		}
	}()
	key, err := base64.RawURLEncoding.DecodeString(made.HostKey)
	if err != nil || len(key) != sealed.KeySize {
		return link, errors.New("the running host-agent answers with an unusable key: it must have the same version as this program")
	}
	device, err := sealed.ReadLinkKeys(made.Keys)
	if err != nil {
		return link, err
	}
	atRelay, err := sharing.Share(ctx, hostagent.ShareAsk{Session: sealedScheme + made.ID, TTL: c.TTL, People: c.People})
	if err != nil {
		return link, err
	}
	relay, join, _ := strings.Cut(atRelay.Link, "/s#")
	is := sealed.ShareLink{Console: made.Console, Relay: relay, Host: made.Host, Session: session, Key: sealed.Key(key), Device: device, Join: join}
	return hostagent.Link{ID: atRelay.ID, Link: is.String(), Expires: made.Expires}, nil
}

// tried opens a new link's session like the link's first viewer, and revokes the link
// after an error, for instance if the host does not know the session.
func tried(ctx context.Context, sharing *hostagent.Sharing, link hostagent.Link, session string) error {
	relay, token, host, err := sharing.Open(ctx, link)
	if err == nil {
		err = cli.CheckSession(ctx, http.DefaultClient, relay, token, host, session)
	}
	if err == nil {
		return nil
	}
	ctx, cancel := afterEnd(ctx)
	defer cancel()
	_, kept := sharing.TakeBack(ctx, link.ID)
	return errors.Join(err, kept)
}

// afterEnd returns a context for taking back what a command has made, also if an interrupt
// has ended the command.
func afterEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

type sharesCmd struct {
	shareFlags
}

func (c *sharesCmd) Run(ctx context.Context, s *streams) error {
	sharing, err := c.sharing()
	if err != nil {
		return err
	}
	list, err := sharing.List(ctx)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(s.err, "No links to this host.")
		return err
	}
	_, devices, _ := c.sealed(ctx, sharing)
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSESSION\tLEVEL\tBY\tUNTIL\tTHERE NOW")
	for _, one := range list {
		for _, d := range devices {
			if one.Session == sealedScheme+d.Fingerprint {
				one.Session, one.Level = d.Session, d.Level.Level()
			}
		}
		there := make([]string, 0, len(one.Watching))
		for _, viewer := range one.Watching {
			there = append(there, viewer.Address)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d of %d  %s\n", printable(one.ID), printable(one.Session), printable(one.Level), printable(one.By),
			one.Expires.Local().Format(time.DateTime), len(one.Watching), one.People, printable(strings.Join(there, " ")))
	}
	return table.Flush()
}

type unshareCmd struct {
	ID  string `arg:"" optional:"" help:"Link ID, as printed by host-agent shares." placeholder:"ID"`
	All bool   `help:"All links to this host, including those made by other people."`
	shareFlags
}

func (c *unshareCmd) Run(ctx context.Context, s *streams) error {
	if (c.ID == "") == !c.All {
		return errors.New("give a link ID, or --all")
	}
	sharing, err := c.sharing()
	if err != nil {
		return err
	}
	still, err := c.unshareSealed(ctx, s, sharing)
	if err != nil {
		return err
	}
	ended, err := sharing.TakeBack(ctx, c.ID)
	if err != nil {
		return errors.Join(still, err)
	}
	if _, err = fmt.Fprintf(s.out, "Revoked: %d. Their connections are closed.\n", ended); err != nil {
		return err
	}
	return still
}

// unshareSealed removes links at a sealed host, which itself decides who sees its sessions. still
// is an error about links that the host may still admit, because its host-agent does not answer or cannot remove them, or because
// the relay, which alone knows IDs, names no link of the host for the ID.
func (c *unshareCmd) unshareSealed(ctx context.Context, s *streams, sharing *hostagent.Sharing) (still, err error) {
	control, devices, is := c.sealed(ctx, sharing)
	list, err := sharing.List(ctx)
	if err != nil && !(is && c.All) {
		return nil, err
	}
	named := map[string]bool{} // fingerprints
	for _, one := range list {
		if fingerprint, ok := strings.CutPrefix(one.Session, sealedScheme); ok && (c.All || one.ID == c.ID) {
			named[fingerprint] = true
		}
	}
	if !is && len(named) > 0 {
		return fmt.Errorf("the sealed host still admits the holders, because no control socket of its host-agent answers: once it runs, end each link there: %s", removals(named)), nil
	}
	links := linksOf(devices)
	removed := slices.Clone(links)
	if !c.All {
		removed = slices.DeleteFunc(removed, func(d hostagent.DeviceInfo) bool { return !named[d.Fingerprint] })
	}
	for _, d := range removed {
		if _, err := control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "remove", Device: d.Fingerprint}); err != nil {
			still = errors.Join(still, fmt.Errorf("the sealed host still admits the holders of the link to %s: %w", printable(d.Session), err))
			continue
		}
		fmt.Fprintf(s.err, "Ended at the host: the link to %s.\n", printable(d.Session))
	}
	if len(links) > 0 && len(removed) == 0 {
		still = errors.New("the sealed host has ended no link, because the relay names none of the host's links for this ID: host-agent devices lists them, and host-agent devices --remove=FINGERPRINT ends one")
	}
	return still, nil
}

// linksOf returns the links among a sealed host's devices. The host also lists links whose time is over.
func linksOf(devices []hostagent.DeviceInfo) []hostagent.DeviceInfo {
	now := time.Now()
	return slices.DeleteFunc(devices, func(d hostagent.DeviceInfo) bool { return d.People == 0 || !now.Before(d.End) })
}

// removals returns the commands that end links at a sealed host. The relay has named the fingerprints, so they may be any text.
func removals(fingerprints map[string]bool) string {
	var commands []string
	for _, fingerprint := range slices.Sorted(maps.Keys(fingerprints)) {
		commands = append(commands, "host-agent devices --remove="+cli.Quoted(printable(fingerprint)))
	}
	return strings.Join(commands, "; ")
}
