package ident

import "testing"

// TestBytes shows that an id survives its short form and that anything else is refused.
func TestBytes(t *testing.T) {
	id := New()
	b, err := Bytes(id)
	if err != nil || FromBytes(b) != id {
		t.Fatalf("%q came back as %q: %v", id, FromBytes(b), err)
	}
	if New() == id {
		t.Fatal("two ids are the same")
	}
	for _, bad := range []string{"", "00", "zz000000000000000000000000000000", id + "0"} {
		if _, err := Bytes(bad); err == nil {
			t.Errorf("%q was taken for an id", bad)
		}
	}
}

// TestOpIDString shows the form that people read in dumps.
func TestOpIDString(t *testing.T) {
	if got := (OpID{Term: 3, Index: 17}).String(); got != "3.17" {
		t.Fatal(got)
	}
}
