package connect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/sealed"
)

// PairConfig configures a pairing.
type PairConfig struct {
	Host    string
	Code    sealed.Code
	Expect  *sealed.Fingerprint // fingerprint of the host's key, from a link; nil: the code alone proves the key
	Name    string              // name of this machine
	Pending func(*Pairing)      // displays the keys' words while a person at the host compares them
}

// Pair pairs this machine with a sealed host, and stores the pairing in a home.
func (r *Relay) Pair(ctx context.Context, home *Home, cfg PairConfig) (*Pairing, error) {
	device, err := sealed.NewDevice()
	if err != nil {
		return nil, err
	}
	p := &Pairing{Relay: r.URL, Host: cfg.Host, Device: device}
	ask := sealAsk{relay: r.URL, host: cfg.Host, expect: cfg.Expect, code: &cfg.Code, device: device, name: cfg.Name, pending: func(host sealed.Key) {
		p.Key = host
		cfg.Pending(p)
	}}
	known, err := home.Pairing(r.URL, cfg.Host)
	switch {
	case err != nil && !errors.Is(err, errUnpaired):
		return nil, err
	case known != nil:
		ask.key = &known.Key // accepting a different key requires unpair first
	}
	up, err := r.open(ctx, cfg.Host, "", true)
	if err != nil {
		return nil, err
	}
	defer up.end()
	if err := up.openSealed(ctx, ask); err != nil {
		return nil, err
	}
	p.Key = up.hostKey
	if err := home.SavePairing(p); err != nil {
		return nil, err
	}
	up.close(closeNormal, "")
	return p, nil
}

// A HostDevice is a device of a sealed host.
type HostDevice struct {
	Fingerprint string      `json:"fingerprint"`
	Words       string      `json:"words"`
	Name        string      `json:"name"`
	Subject     string      `json:"subject"`
	Level       auth.Access `json:"level"`
	Since       time.Time   `json:"since"`
	Seen        time.Time   `json:"seen"`
	End         time.Time   `json:"end"`
}

// Devices lists the devices of a sealed host. If remove is not "", the host first
// removes that device; if Devices returns no error, it was removed.
func (r *Relay) Devices(ctx context.Context, host, remove string) (list []HostDevice, err error) {
	paired, err := r.paired(host)
	if err != nil {
		return nil, err
	}
	if paired == nil {
		return nil, fmt.Errorf("this machine is not paired with %s: run ahp-connect pair %s", host, host)
	}
	up, err := r.open(ctx, host, "", true)
	if err != nil {
		return nil, err
	}
	defer up.end()
	if err := up.openSealed(ctx, paired.ask()); err != nil {
		return nil, err
	}
	defer up.close(closeNormal, "")
	reading := make(chan error, 1)
	go func() { reading <- up.readAnswers() }() // ends with the connection
	if remove != "" {
		if _, err := up.ask(ctx, reading, map[string]any{"id": 1, "do": "remove", "device": remove}); err != nil {
			return nil, err
		}
	}
	return up.ask(ctx, reading, map[string]any{"id": 2, "do": "devices"})
}

// readAnswers reads until the connection ends.
func (u *upstream) readAnswers() error {
	for {
		frame, err := readBinary(context.Background(), u.ws)
		if err != nil {
			return err
		}
		if _, err := u.seal.read(frame); err != nil {
			return err
		}
	}
}

// ask sends a request to the host-agent, and returns the devices from the answer.
func (u *upstream) ask(ctx context.Context, reading <-chan error, request any) ([]HostDevice, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	if err := u.seal.send(ctx, sealed.Ask, body); err != nil {
		return nil, err
	}
	select {
	case body := <-u.seal.answers:
		var answer struct {
			Devices []HostDevice
			Error   string
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, err
		}
		if answer.Error != "" {
			return nil, errors.New(answer.Error)
		}
		return answer.Devices, nil
	case err := <-reading:
		return nil, (&sealAsk{}).failed(ctx, err)
	case <-time.After(answerWait):
		return nil, &Refusal{ahp.CloseHostOffline, "the host has not answered, so a removal may be pending: try again"}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
