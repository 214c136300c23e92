"""The command line: failsoft …"""
