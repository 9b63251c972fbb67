package remembered

import (
	"testing"

	"ahprelay/broker/remember"
	"ahprelay/test/natssite"
)

// The store's disk is full. The store refuses a record with an error, the relay does
// not count that record, and earlier records stay readable. Once the disk has space,
// the next write succeeds. The test needs the permission to mount.
func TestFullDiskLosesNoRecord(t *testing.T) {
	t.Parallel()
	disk := natssite.NewDisk(t, "16m")
	site := &natssite.Site{Keys: natssite.NewKeys(t), Store: disk.Dir}
	site.Start(t, "127.0.0.1:0")
	k := keeperAt(t, site, 0, 0)
	laptop, first, second := hostKey{"acme", "laptop"}, remember.IDOf("s:/1"), remember.IDOf("s:/2")
	if err := write(t, k, laptop, first, 4<<10); err != nil {
		t.Fatal(err)
	}

	disk.Fill(t)
	var err error
	for range 8 { // the store's open block still has space
		if err = write(t, k, laptop, second, 200<<10); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("a full disk takes every record; want an error")
	}
	if !has(t, k, laptop, first) {
		t.Error("a record written before the disk was full is lost; want it kept")
	}

	disk.Free(t)
	if err := site.Server.ReviveStore(); err != nil { // as the registry does
		t.Fatal(err)
	}
	natssite.Eventually(t, "a record is written again", func() bool {
		return write(t, k, laptop, second, 1<<10) == nil && has(t, k, laptop, second)
	})
	again := keeperAt(t, site, 0, 0) // reads the stream anew
	natssite.Eventually(t, "another relay counts the same", func() bool { return again.Stats() == k.Stats() })
	if !has(t, again, laptop, first) || !has(t, again, laptop, second) {
		t.Error("another keeper misses a record after the full disk; want both")
	}
}
