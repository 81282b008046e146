"""The lossy link: token streams over datagrams, serial lines and radio that lose, repeat, reorder and corrupt.

Pure cores (`fec`, `frame`, `packet`, `crypto`, `path`, `sender`, `receiver`, `connection`, `cobs`, `radio`): time comes
in as `now`, bytes go out as values. Thin shells (`udp`, `serial`) move the bytes. A text that arrives is the text that
was sent, or the end says that it is not.
"""
