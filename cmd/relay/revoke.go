package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/gateway"
	operatorapi "ahprelay/gateway/api/operator"
	"ahprelay/internal/clock"
)

type revokeCmd struct {
	relayFlag
	Token     string `help:"Token ID (jti) of any kind of token, or device ID. The token itself also works, but --token-file keeps it out of process lists." placeholder:"ID" xor:"what" required:""`
	TokenFile string `help:"File with a token or its ID; - is standard input." placeholder:"FILE" xor:"what" required:""`
	Subject   string `help:"Subject: all client tokens issued to it so far." placeholder:"NAME" xor:"what" required:""`
	Host      string `help:"Host: all enrolment tokens and credentials issued to it so far." placeholder:"HOST" xor:"what" required:""`
}

var errNotReceived = errors.New("no relay has received this revocation")

// Run revokes through the running relay. If none runs, it stores the revocation for
// the next start, and returns errNotReceived.
func (c *revokeCmd) Run(ctx context.Context, s *streams) error {
	keys, err := c.keys()
	if err != nil {
		return err
	}
	ask, err := c.request(ctx, keys)
	if err != nil {
		return err
	}
	relay, err := c.running()
	var done auth.Revocation
	if err == nil {
		err = relay.operate(ctx, http.MethodPost, "/operator/revocations", "relay revoke", ask, &done)
	}
	if errors.Is(err, errNoRelay) {
		return c.forNextStart(ask, err)
	}
	if refused, ok := errors.AsType[*refusedCommand](err); ok && refused.status == http.StatusInternalServerError {
		return err // revoked, but not saved
	}
	if err != nil {
		return fmt.Errorf("nothing is revoked: %w", err)
	}
	if done.Token == "" {
		// A token's issue time has whole seconds. A token made after this command must
		// carry a later second.
		clock.Sleep(ctx, time.Second)
	}
	if done.Token != "" && !issuedID.MatchString(done.Token) {
		fmt.Fprintf(s.err, "Note: relays issue no token with an ID like %s; check it unless a different issuer did. Relays keep no list of tokens, so they cannot tell.\n", done.Token)
	}
	_, err = fmt.Fprintf(s.out, "revoked %s at the relay at %s and all relays connected to it; connections end\n", named(done), relay.at.URL)
	return err
}

// issuedID matches the IDs of a relay's own tokens and devices.
var issuedID = regexp.MustCompile(`^([A-Z2-7]{26}|device-.+)$`)

// forNextStart stores a revocation in the data directory, because of a relay's absence.
func (c *revokeCmd) forNextStart(ask operatorapi.RevokeRequest, absence error) error {
	done, err := gateway.RevokeForNextStart(c.DataDir, ask)
	if errors.Is(err, gateway.ErrInUse) {
		return fmt.Errorf("nothing is revoked: a relay uses %s, but does not answer commands; give its address with --relay", c.DataDir)
	}
	if err != nil && done == (auth.Revocation{}) {
		return fmt.Errorf("nothing is revoked: %w; %w", absence, err)
	}
	stored := fmt.Errorf("%w: %w. It is stored in %s: %s. It takes effect when a relay starts with this directory, and reaches the other relays of a cluster then", errNotReceived, absence, c.DataDir, named(done))
	if err != nil {
		return fmt.Errorf("%w; if that relay does not run as this user, give it the file first, because this failed: %w", stored, err)
	}
	return stored
}

// request returns the revocation that the flags ask for.
func (c *revokeCmd) request(ctx context.Context, keys *auth.Keys) (ask operatorapi.RevokeRequest, err error) {
	text := c.Token
	if c.TokenFile != "" {
		if text, err = readTokenFile(ctx, c.TokenFile); err != nil {
			return ask, err
		}
	}
	switch {
	case strings.Contains(text, "."): // IDs have none
		id, expires, _ := keys.Tokens().TokenID(text) // grants derived from an expired token may still be valid
		if id == "" {                                 // perhaps a different issuer's, which the running relay knows
			return operatorapi.RevokeRequest{Whole: text}, nil
		}
		return operatorapi.RevokeRequest{Token: id, Expires: expires}, nil
	case text != "":
		return operatorapi.RevokeRequest{Token: text}, nil
	case c.TokenFile != "":
		return ask, fmt.Errorf("--token-file %s is empty", c.TokenFile)
	}
	return operatorapi.RevokeRequest{Tenant: c.Tenant, Subject: c.Subject, Host: c.Host}, nil
}

func readTokenFile(ctx context.Context, path string) (string, error) {
	var from io.Reader
	if path == "-" {
		from = cli.Stdin(ctx)
	} else {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		defer f.Close()
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, auth.MaxTokenSize+2))
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return auth.TokenIn(data), nil
}

func named(r auth.Revocation) string {
	switch {
	case r.Token != "":
		return "token " + r.Token
	case r.Subject != "":
		return fmt.Sprintf("all tokens of subject %s of tenant %s until now", r.Subject, r.Tenant)
	}
	return fmt.Sprintf("all enrolments of host %s of tenant %s until now", r.Host, r.Tenant)
}

type revocationsCmd struct {
	allTenants
}

func (c *revocationsCmd) Run(ctx context.Context, s *streams) error {
	relay, err := c.running()
	if err != nil {
		return err
	}
	var answer struct{ Revocations []auth.Revocation }
	if err := relay.operate(ctx, http.MethodGet, "/operator/revocations", "relay revocations", nil, &answer); err != nil {
		return err
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TENANT\tSUBJECT\tHOST\tTOKEN\tAT\tKEPT UNTIL")
	for _, r := range answer.Revocations {
		until := "for ever"
		if !r.Until.IsZero() {
			until = r.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Tenant, r.Subject, r.Host, r.Token, r.At.Format(time.RFC3339), until)
	}
	return table.Flush()
}
