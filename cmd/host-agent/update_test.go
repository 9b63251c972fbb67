package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A machine imitates a machine with the service. The service runs an installed version
// 5 s after its start. Version 2 may be broken.
type machine struct {
	version int
	broken  bool
	started time.Time
	running int
}

func (m *machine) updater() *updater {
	return &updater{
		replace: func() error { m.version = 2; return nil },
		restore: func() error { m.version = 1; return nil },
		restart: func() error { m.running, m.started = m.version, time.Now(); return nil },
		instance: func(context.Context) (string, error) {
			if m.running == 2 && m.broken || time.Since(m.started) < 5*time.Second {
				return "", errors.New("no control socket")
			}
			return []string{"", "first", "second"}[m.running], nil
		},
	}
}

func TestUpdateReplacesTheRunningVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{version: 1, running: 1}
		if err := m.updater().run(t.Context()); err != nil || m.version != 2 || m.running != 2 {
			t.Fatalf("the machine is %+v, %v; want version 2 installed and running", m, err)
		}
	})
}

func TestUpdateThatDoesNotServeIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{version: 1, running: 1, broken: true}
		start := time.Now()
		if err := m.updater().run(t.Context()); !errors.Is(err, errNotServing) || m.version != 1 || m.running != 1 {
			t.Fatalf("the machine is %+v, %v; want version 1 again, and errNotServing", m, err)
		}
		if took := time.Since(start); took < connectTime || took > connectTime+5*time.Second {
			t.Errorf("the update was taken back after %v; want %v", took, connectTime)
		}
	})
}

func TestUpdateWithoutService(t *testing.T) {
	m := &machine{version: 1, running: 1}
	u := m.updater()
	u.restart = nil
	if err := u.run(t.Context()); err != nil || m.version != 2 || m.running != 1 {
		t.Fatalf("the machine is %+v, %v; want version 2 installed, and 1 running", m, err)
	}
}
