package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
)

// issuers is the flag for OpenID Connect providers: the name of a YAML file with a
// list of [oidc.Config], or in the configuration file the list itself.
type issuers []oidc.Config

func (i *issuers) Decode(ctx *kong.DecodeContext) error {
	value := ctx.Scan.Pop().Value
	name, ok := value.(string)
	if !ok {
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		return i.read(bytes.NewReader(text))
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := i.read(file); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (i *issuers) read(r io.Reader) error {
	d := yaml.NewDecoder(r)
	d.KnownFields(true)
	if err := d.Decode(i); err != nil {
		return fmt.Errorf("want a list of providers, each with issuer, audience and rules: %w", err)
	}
	return nil
}

// signIns returns the providers with a client ID, at which people sign in.
func (i issuers) signIns() (list []*oidc.SignIn, err error) {
	for _, cfg := range i {
		if cfg.ClientID == "" {
			continue
		}
		in, err := oidc.NewSignIn(cfg)
		if err != nil {
			return nil, err
		}
		list = append(list, in)
	}
	return list, nil
}

// verifiers returns the verifiers of the providers' tokens, and a function that ends
// them.
func (i issuers) verifiers(o oidc.Options) (map[string]auth.Verifier, func(), error) {
	var providers []*oidc.Provider
	end := func() {
		for _, p := range providers {
			p.Close()
		}
	}
	byIssuer := map[string]auth.Verifier{}
	for _, cfg := range i {
		p, err := oidc.New(cfg, o)
		if err == nil && byIssuer[p.Issuer()] != nil {
			p.Close()
			err = fmt.Errorf("oidc: duplicate issuer %s", cfg.Issuer)
		}
		if err != nil {
			end()
			return nil, nil, err
		}
		providers = append(providers, p)
		byIssuer[p.Issuer()] = p
	}
	return byIssuer, end, nil
}
