from aegis_cli.main import main

main()
