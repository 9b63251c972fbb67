package notify_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
)

// crowd sets the most targets for several persons of a tenant, each at a host of its own
// that never answers.
func (d *fixture) crowd(tenant string, persons int) {
	d.t.Helper()
	for i := range persons {
		who := auth.Client{ID: fmt.Sprint(tenant, i), Tenant: tenant, Subject: fmt.Sprint(i), Hosts: []string{"*"}, Access: auth.AccessApprove}
		for j := range 16 {
			host := fmt.Sprintf("127.0.%d.%d", i+1, j+1)
			d.net.set(host, 0)
			if _, err := d.SetTarget(context.Background(), who, notify.Target{Kind: notify.Webhook, URL: "http://" + host}); err != nil {
				d.t.Fatal(err)
			}
		}
	}
}

// report is says for the host of any tenant, with as many events as a report may have.
func (d *fixture) report(tenant string, events int) {
	d.t.Helper()
	r := notice.Report{Instance: "agent", Seq: 1}
	for i := range events {
		e := event(i, notice.Done)
		e.ID = tenant + e.ID
		r.Events = append(r.Events, e)
	}
	d.board.Take(tenant, "h", r)
	if err := d.Keep(); err != nil {
		d.t.Fatal(err)
	}
}

// TestSlowTargetsOfATenantDelayNoOtherTenant: while all targets of a tenant take each
// notification and never answer, another tenant's notification is sent at once.
func TestSlowTargetsOfATenantDelayNoOtherTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer d.stop()
		d.crowd("loud", 4)
		d.way(one, nil)
		d.report("loud", 16)
		synctest.Wait()
		d.report("t", 1)
		time.Sleep(time.Second)
		d.want("127.0.0.1", 1)
	})
}
