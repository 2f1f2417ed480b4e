package rpc

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestParseAddresses shows what lists of addresses are taken for, and which are refused by name.
func TestParseAddresses(t *testing.T) {
	for in, want := range map[string][]string{
		"":                               nil,
		" , ":                            nil,
		"a":                              {"a:7051"},
		"a:1, b ,[::1]:2":                {"a:1", "b:7051", "[::1]:2"},
		"::1":                            {"[::1]:7051"},
		"[::1]":                          {"[::1]:7051"},
		"fe80::1%eth0":                   {"[fe80::1%eth0]:7051"},
		":80":                            {":80"},
		"a:":                             {"a:7051"},
		"127.0.0.1:0":                    {"127.0.0.1:0"},
		"master-1.example.com:007051,::": {"master-1.example.com:7051", "[::]:7051"},
	} {
		got, err := ParseAddresses(in, 7051)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"http://a:1", "a:b", "a:65536", "a:-1", "[::1", "::1]", "a b:1", "1:2:3", "a/b", "[a]:1:2"} {
		_, err := ParseAddresses("good:1,"+in, 7051)
		require.ErrorContains(t, err, `address "`+in+`"`)
	}
}

// FuzzParseAddresses shows that what is accepted can be split into host and port, and parsed again to the same.
func FuzzParseAddresses(f *testing.F) {
	f.Add("a:1,[::1]:2, ::1")
	f.Add("[fe80::1%eth0]:7")
	f.Fuzz(func(t *testing.T, in string) {
		got, err := ParseAddresses(in, 7051)
		if err != nil {
			return
		}
		for _, a := range got {
			if _, _, err := net.SplitHostPort(a); err != nil {
				t.Fatalf("%q gave %q: %v", in, a, err)
			}
			again, err := ParseAddresses(a, 1)
			if err != nil || len(again) != 1 || again[0] != a {
				t.Fatalf("%q gave %q, and that %q, %v", in, a, again, err)
			}
		}
	})
}

// TestAdvertisedAddresses shows what others are told to connect to.
func TestAdvertisedAddresses(t *testing.T) {
	name, err := os.Hostname()
	require.NoError(t, err)
	for _, c := range []struct{ configured, bound, want []string }{
		{nil, []string{"127.0.0.1:7051", "[::1]:7052"}, []string{"127.0.0.1:7051", "[::1]:7052"}},
		{nil, []string{"0.0.0.0:7051"}, []string{name + ":7051"}},
		{nil, []string{"[::]:7051"}, []string{name + ":7051"}},
		{[]string{"outside:80"}, []string{"10.0.0.1:7051"}, []string{"outside:80"}},
		{[]string{"outside:0"}, []string{"10.0.0.1:7051"}, []string{"outside:7051"}},
	} {
		got, err := AdvertisedAddresses(c.configured, c.bound)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, bad := range []string{"0.0.0.0:1", ":1", "[::]:1", "noport"} {
		_, err := AdvertisedAddresses([]string{bad}, []string{"a:1"})
		require.Error(t, err, bad)
	}
	_, err = AdvertisedAddresses(nil, nil)
	require.Error(t, err)
}
